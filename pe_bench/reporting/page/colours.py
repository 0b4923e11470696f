"""The colours of encodings on a dark background: the same hues, but lighter where needed."""

import colorsys

LEAST = 0.30  # minimum relative luminance; a contrast of 6 on a background of about 0.01


def dark(colour: str) -> str:
    """Return a colour "#rrggbb" of the same hue that is visible on a dark background."""
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    while luminance(red, green, blue) < LEAST:
        lightness += 0.01
        red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
    return "#" + "".join(f"{round(255 * value):02X}" for value in (red, green, blue))


def luminance(red: float, green: float, blue: float) -> float:
    """Return the relative luminance (WCAG 2) of a colour with channels from 0 to 1."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

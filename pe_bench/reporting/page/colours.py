"""The colours of encodings on a dark ground: the same hues, as light as they have to be there."""

import colorsys

LEAST = 0.30  # relative luminance on a ground of about 0.01: a contrast of 6


def dark(colour: str) -> str:
    """Return a colour "#rrggbb" that can be seen on a dark ground, of the same hue."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    while luminance(red, green, blue) < LEAST:
        lightness += 0.01
        red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
    return "#" + "".join(f"{round(255 * value):02X}" for value in (red, green, blue))


def luminance(red: float, green: float, blue: float) -> float:
    """Return the relative luminance of a colour of channels from 0 to 1 (WCAG 2)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

//! A figure: a head, and below it panels that share an axis, or bars side by side.

/// What is drawn, from top to bottom.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Stands on top.
    pub title: String,
    /// Lines below it.
    pub notes: Vec<String>,
    /// What the marks mean.
    pub legend: Vec<(Ink, String)>,
    /// The rest.
    pub body: Body,
}

/// What a figure shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// How something goes on over time, or depends on something else.
    Panels(Panels),
    /// How cases compare.
    Bars(Bars),
}

/// Panels one above the other that share an axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Panels {
    /// What the shared axis counts.
    pub x_label: String,
    /// Where it begins and ends.
    pub x: (f64, f64),
    /// From top to bottom.
    pub list: Vec<Panel>,
}

/// A row of bars for each case, one bar for each measure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// The names of the cases.
    pub rows: Vec<String>,
    /// From left to right.
    pub measures: Vec<Measure>,
}

/// One thing that was measured of every case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measure {
    /// What.
    pub title: String,
    /// One for each row; none where there is nothing to show.
    pub bars: Vec<Option<Bar>>,
    /// What a bar over the whole width stands for; none: the longest of them.
    pub full: Option<f64>,
}

/// What was measured of one case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// How much.
    pub value: f64,
    /// The same as a text.
    pub label: String,
    /// From where to where it is accepted.
    pub accepted: Option<(f64, f64)>,
}

/// One of the panels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Panel {
    /// What it is about: above it, at the left.
    pub title: String,
    /// What to see in it: above it, at the right.
    pub note: String,
    /// What its own axis counts.
    pub y_label: String,
    /// Where that ends; it begins at 0.
    pub y_max: f64,
    /// Painted one over the other, the first at the bottom.
    pub layers: Vec<Layer>,
}

/// Something drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    /// Bars of equal width that begin at the axis' begin, one after the other.
    Bars {
        /// Colour.
        ink: Ink,
        /// Width on the axis of time.
        width: f64,
        /// How high each is.
        heights: Vec<f64>,
    },
    /// A time span marked over the full height, with a text at its upper edge.
    Band {
        /// Colour.
        ink: Ink,
        /// Where it begins and ends.
        x: (f64, f64),
        /// Drawn at its right side, or at its left where there is no room.
        label: String,
    },
    /// Dots.
    Dots {
        /// Colour.
        ink: Ink,
        /// Where they are.
        points: Vec<(f64, f64)>,
    },
    /// A line from point to point.
    Line {
        /// Colour.
        ink: Ink,
        /// Where it goes.
        points: Vec<(f64, f64)>,
    },
    /// A thin line at one height with a text at its right end.
    Level {
        /// Colour.
        ink: Ink,
        /// How high.
        y: f64,
        /// What it is.
        label: String,
    },
}

/// Colours that are told apart also without seeing red or green (M. Okabe, K. Ito, "Color
/// universal design", 2008).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// What stands in the background.
    Grey,
    /// What matters most.
    Blue,
    /// What to look at.
    Orange,
    /// A second thing beside blue.
    Green,
    /// A third.
    Purple,
}

impl Panel {
    /// The heights of bars of `width` from `start` on, each the sum of what falls into it.
    pub fn binned(
        (start, end): (f64, f64),
        width: f64,
        points: impl Iterator<Item = (f64, f64)>,
    ) -> Vec<f64> {
        let mut heights = vec![0.0; index((end - start) / width) + 1];
        for (x, amount) in points {
            if let Some(height) = heights.get_mut(index((x - start) / width)) {
                *height += amount;
            }
        }
        heights
    }
}

/// A hair is added: the border of a bar belongs to the bar that begins there, also when the
/// division comes out a little short of it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and a height that is not there is left out"
)]
fn index(bar: f64) -> usize {
    (bar + 1e-9).floor() as usize
}

/// 1, 2 or 5 times a power of ten, the smallest that is not below `value`.
pub fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    // A hair below the value, so that 0.3 / 0.1 counts as 3.
    let fits = steps
        .into_iter()
        .find(|step| step * power >= value * (1.0 - 1e-9));
    fits.unwrap_or(10.0) * power
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "small whole numbers and exact decimals")]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_a_border_falls_into_the_later_bar() {
        let points = [(0.0, 1.0), (0.3, 1.0), (0.6, 2.0), (0.89, 1.0), (0.9, 4.0)];
        let heights = Panel::binned((0.0, 0.9), 0.3, points.into_iter());
        assert_eq!(heights, [1.0, 1.0, 3.0, 4.0]);
        let none = Panel::binned((5.0, 6.0), 1.0, [(4.5, 1.0), (9.0, 1.0)].into_iter());
        assert_eq!(none, [1.0, 0.0]);
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, want) in [
            (8.0, 10.0),
            (1.0, 1.0),
            (0.013, 0.02),
            (21.0, 50.0),
            (0.0, 1.0),
        ] {
            assert_eq!(round_up(value), want, "{value}");
        }
    }
}

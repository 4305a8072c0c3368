//! The words for what is accepted: `115 ± 1.5`, `0.32 to 0.34`, `at least 98`, `at most 2 × other`.

/// What to write.
pub(super) const ADVICE: &str = "write 60, 115 ± 1.5, 32 to 34 %, at least 98, at most 250 ms, \
                                 at least 1.2 × NAME OF A CASE or never";

/// Two figures that differ by less than this part count as equal: what is written in decimals is
/// rounded.
const HAIR: f64 = 1e-9;

/// What is accepted of a figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Bound {
    /// From where to where; infinite at an open end.
    Range(f64, f64),
    /// At least so many times the mean of another case.
    NotBelow(f64, Box<str>),
    /// At most so many times the mean of another case.
    NotAbove(f64, Box<str>),
    /// There is no such figure, as when something never happens.
    Never,
}

impl Bound {
    /// The case to compare with.
    pub(super) fn other(&self) -> Option<&str> {
        match self {
            Self::NotBelow(_, other) | Self::NotAbove(_, other) => Some(other),
            Self::Range(..) | Self::Never => None,
        }
    }

    /// Whether a figure is accepted; `other` is the same figure of the case to compare with.
    pub(super) fn holds(&self, figure: Option<f64>, other: Option<f64>) -> bool {
        let within = |least: f64, most: f64| {
            figure.is_some_and(|figure| {
                let hair = figure.abs() * HAIR;
                (least - hair..=most + hair).contains(&figure)
            })
        };
        match (self, other) {
            (Self::Never, _) => figure.is_none(),
            (Self::Range(least, most), _) => within(*least, *most),
            (Self::NotBelow(factor, _), Some(other)) => within(factor * other, f64::INFINITY),
            (Self::NotAbove(factor, _), Some(other)) => within(f64::NEG_INFINITY, factor * other),
            (Self::NotBelow(..) | Self::NotAbove(..), None) => false,
        }
    }
}

/// Reads it; none when it makes no sense.
pub(super) fn parse(text: &str) -> Option<Bound> {
    let text = text.trim();
    if text == "never" {
        return Some(Bound::Never);
    }
    let open = [("at least ", true), ("at most ", false)];
    for (words, least) in open {
        let Some(rest) = text.strip_prefix(words) else {
            continue;
        };
        if let Some((factor, other)) = rest.split_once(" × ") {
            let bound = if least {
                Bound::NotBelow
            } else {
                Bound::NotAbove
            };
            return Some(bound(number(factor)?, other.trim().into()));
        }
        let (rest, unit) = unit(rest);
        let end = number(rest)? * unit;
        return Some(if least {
            Bound::Range(end, f64::INFINITY)
        } else {
            Bound::Range(f64::NEG_INFINITY, end)
        });
    }
    let (text, unit) = unit(text);
    let (least, most) = if let Some((middle, off)) = text.split_once('±') {
        let (middle, off) = (number(middle)?, number(off)?);
        (middle - off, middle + off)
    } else if let Some((least, most)) = text.split_once(" to ") {
        (number(least)?, number(most)?)
    } else {
        (number(text)?, number(text)?)
    };
    (least <= most).then_some(Bound::Range(least * unit, most * unit))
}

/// A text without its unit, and what one of it is.
fn unit(text: &str) -> (&str, f64) {
    let units = [("%", 0.01), ("ms", 0.001), ("s", 1.0)];
    let found = units
        .iter()
        .find_map(|(unit, one)| Some((text.strip_suffix(unit)?, *one)));
    found.unwrap_or((text, 1.0))
}

fn number(text: &str) -> Option<f64> {
    let number: f64 = text.trim().parse().ok()?;
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(bound: &str, figure: f64) -> bool {
        parse(bound).unwrap().holds(Some(figure), None)
    }

    #[test]
    fn bounds_hold_up_to_their_ends() {
        for (bound, fits, misses) in [
            ("60", [60.0, 60.0], [59.99, 60.01]),
            ("115 ± 1.5", [113.5, 116.5], [113.4, 116.6]),
            ("0.1 ± 0.2", [-0.1, 0.3], [-0.11, 0.31]),
            ("32 to 34 %", [0.32, 0.34], [0.319, 0.341]),
            ("98.6 ± 0.5 %", [0.981, 0.991], [0.98, 0.992]),
            ("at least 99.5%", [0.995, 1.0], [0.994, 0.0]),
            ("at most 250 ms", [0.0, 0.25], [0.251, 1.0]),
            ("2 s", [2.0, 2.0], [1.9, 2.1]),
        ] {
            assert!(
                fits.iter().all(|figure| holds(bound, *figure)),
                "{bound} does not hold"
            );
            assert!(
                misses.iter().all(|figure| !holds(bound, *figure)),
                "{bound} holds"
            );
        }
        assert!(!parse("60").unwrap().holds(None, None));
        assert!(parse("never").unwrap().holds(None, None));
        assert!(!parse("never").unwrap().holds(Some(1.0), None));
    }

    #[test]
    fn bounds_compare_with_other_cases() {
        let more = parse("at least 1.2 × keeps nothing").unwrap();
        assert_eq!(more.other(), Some("keeps nothing"));
        assert!(more.holds(Some(12.0), Some(10.0)));
        assert!(!more.holds(Some(11.9), Some(10.0)));
        assert!(!more.holds(Some(12.0), None));
        let less = parse("at most 1 × a × b").unwrap();
        assert_eq!(less.other(), Some("a × b"));
        assert!(less.holds(Some(10.0), Some(10.0)));
        assert!(!less.holds(Some(10.1), Some(10.0)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "many",
            "± 3",
            "5 to 4",
            "at least",
            "at most x",
            "inf",
            "1 ± nan",
            "5 ± -1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

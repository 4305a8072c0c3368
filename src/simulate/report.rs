//! What an experiment shows.

use std::fmt;

use crate::{
    chart::{figure::Figure, table::Table},
    model::time::{NANOS_PER_SECOND, Span},
};

/// Tables for the terminal and a figure for the eye.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What was tried.
    pub title: String,
    /// Lines below it.
    pub notes: Vec<String>,
    /// The results.
    pub tables: Vec<Table>,
    /// What the experiment expects and did not happen, one sentence each.
    pub failures: Vec<String>,
    /// The same to look at.
    pub figure: Figure,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        for table in &self.tables {
            write!(f, "\n{table}")?;
        }
        Ok(())
    }
}

/// A length of time in the unit that suits it, to four digits or so: `2.5ms`, `97ms`, `1.25s`.
pub fn short(span: Span) -> String {
    let (unit, decimals, per_second) = match span.as_nanos() {
        0 => return "0".to_owned(),
        1..1_000 => ("ns", 0, 1e9),
        1_000..1_000_000 => ("µs", 1, 1e6),
        1_000_000..NANOS_PER_SECOND => ("ms", 1, 1e3),
        _ => ("s", 4, 1.0),
    };
    let number = format!("{:.decimals$}", span.as_secs_f64() * per_second);
    let number = if decimals > 0 {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        &number
    };
    format!("{number}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (nanos, want) in [
            (0, "0"),
            (999, "999ns"),
            (1_500, "1.5µs"),
            (100_000_000, "100ms"),
            (97_549_000, "97.5ms"),
            (999_999_999, "1000ms"),
            (1_097_500_000, "1.0975s"),
            (3_600_000_000_000, "3600s"),
        ] {
            assert_eq!(short(Span::from_nanos(nanos)), want);
        }
    }
}

//! The metrics page as `OpenMetrics` 1.0, for scrapers that ask for it.

use std::fmt::Write as _;

/// Content type of the result.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether an `Accept` header asks for it.
pub fn is_accepted(accept: &str) -> bool {
    let mut kinds = accept.split(',').map(str::trim);
    kinds.any(|kind| kind.starts_with("application/openmetrics-text"))
}

/// A page in Prometheus' text format 0.0.4, rewritten.
///
/// Samples stay as they are, letter by letter: the reference's dashboards need its names. `OpenMetrics`
/// wants counters to end in `_total` and to be described without it; counters of other names, which
/// are the reference's, are described as `unknown`.
pub fn of_text(page: &str) -> String {
    let mut counters = Counters::default();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ")
            && let Some((name, "counter")) = rest.split_once(' ')
        {
            counters.0.push(name);
        }
    }
    let mut out = String::with_capacity(page.len() + 16);
    for line in page.lines() {
        // Writing to a string cannot fail.
        let _ = match Described::read(line) {
            Some(Described { what, name, text }) => {
                let text = match (what, counters.has(name), name.strip_suffix("_total")) {
                    ("TYPE", true, None) => "unknown",
                    _ => text,
                };
                let text = match what {
                    "HELP" => text.replace('"', "\\\""),
                    _ => text.to_owned(),
                };
                writeln!(out, "# {what} {} {text}", counters.family(name))
            }
            None => writeln!(out, "{line}"),
        };
    }
    out.push_str("# EOF\n");
    out
}

#[derive(Default)]
struct Counters<'p>(Vec<&'p str>);

impl Counters<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    fn family<'n>(&self, name: &'n str) -> &'n str {
        match name.strip_suffix("_total") {
            Some(family) if self.has(name) => family,
            _ => name,
        }
    }
}

/// A line that describes a family.
struct Described<'p> {
    what: &'p str,
    name: &'p str,
    text: &'p str,
}

impl<'p> Described<'p> {
    fn read(line: &'p str) -> Option<Self> {
        let mut parts = line.strip_prefix("# ")?.splitn(3, ' ');
        Some(Self {
            what: parts
                .next()
                .filter(|what| matches!(*what, "HELP" | "TYPE"))?,
            name: parts.next()?,
            text: parts.next().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_without_total_and_samples_stay() {
        let page = "# HELP a_total What \"a\" is\n# TYPE a_total counter\na_total{x=\"1\"} 3\n\
                    # HELP b Old\n# TYPE b counter\nb 1\n# HELP c_total Gauge\n# TYPE c_total gauge\nc_total 2\n";
        assert_eq!(
            of_text(page),
            "# HELP a What \\\"a\\\" is\n# TYPE a counter\na_total{x=\"1\"} 3\n\
             # HELP b Old\n# TYPE b unknown\nb 1\n# HELP c_total Gauge\n# TYPE c_total gauge\nc_total 2\n# EOF\n"
        );
    }

    #[test]
    fn scrapers_ask_for_it_by_name() {
        assert!(is_accepted(
            "text/html;q=0.1, application/openmetrics-text;version=1.0.0;q=0.5"
        ));
        assert!(!is_accepted("text/plain;version=0.0.4"));
    }
}

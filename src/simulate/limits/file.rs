//! The file of `kind: limits`.

use std::{fs::File, io::BufReader, path::Path};

use super::LimitsExperiment;
use crate::{
    config::document::{Located, Node, RawLimits, Reader},
    model::time::{Span, Timestamp},
    rules::limit::Limit,
    simulate::{
        arrivals::{Arrival, MOST, Pattern, Source, Stream, generate},
        expect::{self, Expected},
        experiment::Experiment,
    },
    trace::{Step, Trace, mapping::Mapping, record::Record, time},
};

const NAMES: [&str; 9] = [
    "kind", "title", "seed", "start", "window", "bar", "arrivals", "limits", "expect",
];
const PATTERNS: [&str; 4] = ["burst", "uniform", "poisson", "csv"];

/// A Monday, the first of a month and of a year: every window of the clock and of the calendar
/// begins with the experiment, but for the reference's weeks (from Thursday), months and years.
const START: Timestamp = Timestamp::from_secs(1_704_067_200);

/// A number below this is no date but a time since the start.
const FIRST_DATE: Timestamp = Timestamp::from_secs(1_000_000_000);

/// What a file says, not yet put together.
#[derive(Default)]
struct Raw {
    title: Option<Box<str>>,
    seed: u64,
    start: Option<Timestamp>,
    window: Option<Span>,
    bar: Option<Span>,
    sources: Vec<RawSource>,
    limits: Vec<Limit>,
}

enum RawSource {
    Made(Source),
    /// Times since the start, or dates.
    Read(Vec<(Timestamp, u64)>),
}

/// Reads it. Without an experiment the reader has an error.
pub(crate) fn read(reader: &mut Reader, root: &Node, folder: &Path) -> Option<Box<dyn Experiment>> {
    let mut raw = Raw::default();
    let mut missing = vec!["arrivals", "limits"];
    reader.own_fields(root, &NAMES, &mut |reader, name, value| {
        missing.retain(|field| *field != name);
        raw.field(reader, name, value, folder);
    });
    for field in missing {
        reader.error(root.at, format!("`{field}` is missing"), "add it");
    }
    if reader.has_errors() {
        return None;
    }
    let expected = expected(reader, root, &raw.limits);
    let experiment = raw.put_together(reader, root)?;
    Some(Box::new(LimitsExperiment {
        expected,
        ..experiment
    }))
}

/// `expect:`, once the names of the limits are known: what is expected of each of them.
fn expected(reader: &mut Reader, root: &Node, limits: &[Limit]) -> Vec<Vec<Expected>> {
    let names: Vec<&str> = limits.iter().map(super::name).collect();
    let mut expected = vec![Vec::new(); names.len()];
    reader.fields(root, &mut |reader, name, value| {
        if name != "expect" {
            return;
        }
        reader.own_fields(value, &names, &mut |reader, name, value| {
            let index = names.iter().position(|limit| *limit == name);
            if let Some(expected) = index.and_then(|index| expected.get_mut(index)) {
                expect::read(reader, value, &super::COLUMNS, false, expected);
            }
        });
    });
    for expected in &expected {
        expect::check(reader, expected, &names);
    }
    expected
}

impl Raw {
    fn field(&mut self, reader: &mut Reader, name: &str, value: &Node, folder: &Path) {
        match name {
            "title" => self.title = reader.words(value).map(|title| title.value),
            "seed" => self.seed = reader.count(value).map_or(0, |seed| seed.value),
            "start" => self.start = date(reader, value),
            "window" => self.window = length(reader, value),
            "bar" => self.bar = length(reader, value),
            "arrivals" => {
                let items = reader.list(value);
                if items.is_empty() {
                    reader.error(value.at, "nobody comes", SOURCE_ADVICE);
                }
                for (index, item) in items.iter().enumerate() {
                    let source = reader.item(index, |reader| source(reader, item, folder));
                    self.sources.extend(source);
                }
            }
            "limits" => self.limits = RawLimits::read(reader, value).limits,
            _ => {}
        }
    }

    fn put_together(self, reader: &mut Reader, root: &Node) -> Option<LimitsExperiment> {
        let start = self.start.or_else(|| self.first_minute()).unwrap_or(START);
        let since_start = |at: Timestamp| {
            if at < FIRST_DATE {
                Some(Timestamp::ZERO.until(at))
            } else {
                (at >= start).then(|| start.until(at))
            }
        };
        let mut sources = Vec::new();
        for source in self.sources {
            sources.push(match source {
                RawSource::Made(source) => source,
                RawSource::Read(read) => {
                    let arrival = |(at, cost): (Timestamp, u64)| {
                        let at = since_start(at)?;
                        Some(Arrival { at, cost })
                    };
                    let Some(arrivals) = read.into_iter().map(arrival).collect() else {
                        let what = "there are requests before the start";
                        reader.error(root.at, what, "set `start:` earlier");
                        return None;
                    };
                    Source {
                        pattern: Pattern::Given(arrivals),
                        cost: 1,
                    }
                }
            });
        }
        let arrivals = match generate(&sources, self.seed) {
            Ok(arrivals) => arrivals,
            Err(error) => {
                reader.error(root.at, error.to_string(), "let fewer come");
                return None;
            }
        };
        let periods = self.limits.iter().map(|limit| limit.quota.period());
        let longest = periods.max().unwrap_or_default();
        Some(LimitsExperiment {
            title: self
                .title
                .map_or_else(|| "Requests against limits".to_owned(), String::from),
            arrivals,
            window: self.window.unwrap_or(longest),
            limits: self.limits,
            start,
            bar: self.bar,
            expected: Vec::new(),
        })
    }

    /// The minute in which the first request with a date comes.
    fn first_minute(&self) -> Option<Timestamp> {
        let read = self.sources.iter().filter_map(|source| match source {
            RawSource::Read(read) => Some(read),
            RawSource::Made(_) => None,
        });
        let dates = read
            .flatten()
            .map(|(at, _)| *at)
            .filter(|at| *at >= FIRST_DATE);
        dates.min().map(|first| first.floor(Span::from_secs(60)))
    }
}

const SOURCE_ADVICE: &str = "add burst, uniform, poisson or csv";

/// One item of `arrivals:`.
fn source(reader: &mut Reader, item: &Node, folder: &Path) -> Option<RawSource> {
    let mut sources = Vec::new();
    let mut patterns = 0;
    reader.own_fields(item, &PATTERNS, &mut |reader, name, value| {
        patterns += 1;
        sources.extend(match name {
            "burst" => burst(reader, value),
            "uniform" => stream(reader, value, Pattern::Uniform),
            "poisson" => stream(reader, value, Pattern::Poisson),
            _ => csv(reader, value, folder),
        });
    });
    if patterns > 1 {
        reader.error(
            item.at,
            "one pattern for each item",
            "write each as an item of its own",
        );
    } else if patterns == 0 {
        reader.error(item.at, "the pattern is missing", SOURCE_ADVICE);
    }
    sources.pop()
}

fn burst(reader: &mut Reader, node: &Node) -> Option<RawSource> {
    let (mut at, mut over, mut count, mut cost) = (Span::ZERO, Span::ZERO, None, 1);
    reader.own_fields(
        node,
        &["count", "at", "over", "cost"],
        &mut |reader, name, value| match name {
            "at" => at = reader.span(value).unwrap_or_default(),
            "over" => over = reader.span(value).unwrap_or_default(),
            "cost" => cost = reader.count(value).map_or(1, |cost| cost.value),
            _ => count = reader.count(value).map(|count| count.value),
        },
    );
    if count.is_none() {
        reader.error(node.at, "`count` is missing", "say how many come");
    }
    let count = count?;
    let pattern = Pattern::Burst { at, count, over };
    Some(RawSource::Made(Source { pattern, cost }))
}

fn stream(reader: &mut Reader, node: &Node, pattern: fn(Stream) -> Pattern) -> Option<RawSource> {
    let (mut from, mut until, mut rate, mut cost) = (Span::ZERO, None, None, 1);
    reader.own_fields(
        node,
        &["rate", "from", "until", "cost"],
        &mut |reader, name, value| match name {
            "rate" => rate = reader.rate(value).map(|rate| rate.value),
            "from" => from = reader.span(value).unwrap_or_default(),
            "until" => until = reader.span(value),
            _ => cost = reader.count(value).map_or(1, |cost| cost.value),
        },
    );
    let (Some(rate), Some(until)) = (rate, until) else {
        reader.error(
            node.at,
            "`rate` and `until` are needed",
            "say how many come, and how long",
        );
        return None;
    };
    if until <= from {
        reader.error(
            node.at,
            "it ends before it begins",
            "make `until` later than `from`",
        );
    }
    let stream = Stream {
        units: rate.units,
        period: rate.period.span,
        from,
        until,
    };
    Some(RawSource::Made(Source {
        pattern: pattern(stream),
        cost,
    }))
}

fn csv(reader: &mut Reader, node: &Node, folder: &Path) -> Option<RawSource> {
    let mut file: Option<Located<Box<str>>> = None;
    reader.own_fields(node, &["file"], &mut |reader, _, value| {
        file = reader.words(value);
    });
    let Some(file) = file else {
        reader.error(
            node.at,
            "`file` is missing",
            "name a table with the columns time and cost",
        );
        return None;
    };
    match read_csv(&folder.join(&*file.value)) {
        Ok(read) => Some(RawSource::Read(read)),
        Err(what) => {
            reader.error(file.at, format!("{}: {what}", file.value), "");
            None
        }
    }
}

fn read_csv(path: &Path) -> Result<Vec<(Timestamp, u64)>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let trace = Trace::new(BufReader::new(file), None, Mapping::of_arrivals());
    let mut trace = trace.map_err(|error| error.to_string())?;
    let mut record = Record::default();
    let mut read = Vec::new();
    while let Some(Step { line, read: fits }) =
        trace.read(&mut record).map_err(|error| error.to_string())?
    {
        fits.map_err(|error| format!("line {line}: {error}"))?;
        if read.len() >= MOST {
            return Err(format!("more than {MOST} requests"));
        }
        read.push((record.time, record.cost.unwrap_or(1)));
    }
    Ok(read)
}

/// A length of time that is not zero.
fn length(reader: &mut Reader, node: &Node) -> Option<Span> {
    let span = reader.span(node)?;
    if span.is_zero() {
        reader.error(node.at, "no time at all", "write a longer one");
    }
    Some(span)
}

fn date(reader: &mut Reader, node: &Node) -> Option<Timestamp> {
    let text = reader.words(node)?;
    let date = time::parse(&text.value).filter(|at| *at >= FIRST_DATE);
    if date.is_none() {
        let advice = "write a date such as 2024-01-01T00:00:00Z";
        reader.error(
            node.at,
            format!("{:?} is no date after 2001", text.value),
            advice,
        );
    }
    date
}

//! Log lines: level, format, and a brake for those that strangers can cause.

use std::{
    fmt, io,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    Registry,
    filter::Targets,
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::{Format, Writer},
        time::{FormatTime, SystemTime},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    reload,
};

use crate::{
    model::time::{Span, Timestamp},
    telemetry::lines::Lines,
};

/// How much is logged. Read in any letter case, with the reference's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(LevelFilter);

impl Default for Level {
    fn default() -> Self {
        Self(LevelFilter::INFO)
    }
}

impl FromStr for Level {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(match text.to_ascii_lowercase().as_str() {
            "trace" => LevelFilter::TRACE,
            "debug" => LevelFilter::DEBUG,
            "info" => LevelFilter::INFO,
            "warn" | "warning" => LevelFilter::WARN,
            // The reference tells apart what it does before it exits; the level is the same.
            "error" | "fatal" | "panic" => LevelFilter::ERROR,
            "off" => LevelFilter::OFF,
            _ => return Err("want trace, debug, info, warn, error or off"),
        }))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Level {
    /// Ours at the level; the libraries below never more than warnings unless all is wanted,
    /// because they log each frame.
    fn targets(self) -> Targets {
        let others = if self.0 == LevelFilter::TRACE {
            self.0
        } else {
            self.0.min(LevelFilter::WARN)
        };
        Targets::new()
            .with_default(others)
            .with_target(env!("CARGO_CRATE_NAME"), self.0)
    }
}

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line with `@timestamp`, `level` and `@message`, as the reference.
    Json,
}

impl FromStr for LineFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("want text or json"),
        }
    }
}

/// Reads and changes the level of the running program. Clones change the same one.
#[derive(Clone, Default)]
pub struct LevelControl {
    /// None: nothing is logged, only the level is kept.
    handle: Option<reload::Handle<Targets, Registry>>,
    now: Arc<Mutex<Level>>,
}

impl LevelControl {
    /// The level now.
    pub fn get(&self) -> Level {
        *self.now.lock()
    }

    /// Changes the level at once.
    pub fn set(&self, level: Level) {
        let mut now = self.now.lock();
        if let Some(handle) = &self.handle {
            // Fails only when the subscriber is gone, and then nobody reads lines.
            let _ = handle.reload(level.targets());
        }
        *now = level;
    }
}

impl fmt::Debug for LevelControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LevelControl").field(&self.get()).finish()
    }
}

/// Starts logging to standard error. To be called once; a second call changes nothing. What is in
/// the [`Lines`] when the process ends is lost: flush them.
///
/// # Errors
/// As [`Lines::to_stderr`].
pub fn start(level: Level, format: LineFormat) -> io::Result<(LevelControl, Lines)> {
    let lines = Lines::to_stderr()?;
    let (subscriber, control) = subscriber(level, format, lines.clone());
    // Fails when somebody logs already; then the lines are theirs.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok((control, lines))
}

fn subscriber<W>(
    level: Level,
    format: LineFormat,
    writer: W,
) -> (impl Subscriber + Send + Sync, LevelControl)
where
    W: for<'w> MakeWriter<'w> + Clone + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(level.targets());
    let text = (format == LineFormat::Text).then(|| {
        tracing_subscriber::fmt::layer()
            .event_format(Format::default().with_target(false))
            .with_ansi(false)
            .with_writer(writer.clone())
    });
    let json = (format == LineFormat::Json).then(|| {
        tracing_subscriber::fmt::layer()
            .event_format(JsonLine)
            .with_writer(writer)
    });
    let subscriber = tracing_subscriber::registry()
        .with(filter)
        .with(text)
        .with(json);
    let control = LevelControl {
        handle: Some(handle),
        now: Arc::new(Mutex::new(level)),
    };
    (subscriber, control)
}

/// The reference's JSON: `@timestamp`, `level`, `@message`; fields of the event beside them.
struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = JsonFields(Map::new());
        event.record(&mut fields);
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        // Last, so that no field of an event can stand in for them.
        fields.0.insert("@timestamp".into(), time.into());
        fields.0.insert("level".into(), level.into());
        writeln!(writer, "{}", Value::Object(fields.0))
    }
}

struct JsonFields(Map<String, Value>);

impl JsonFields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        let name = match field.name() {
            "message" => "@message",
            name => name,
        };
        self.0.insert(name.into(), value.into());
    }
}

impl Visit for JsonFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
}

/// Lets one line through per [`Throttle::EVERY`], for lines that a stranger can cause at will.
#[derive(Debug, Default)]
pub struct Throttle {
    /// Steady time from which the next line may pass.
    next: AtomicU64,
    held_back: AtomicU64,
}

impl Throttle {
    /// Time between two lines.
    pub const EVERY: Span = Span::from_secs(10);

    /// Some when a line may be written at `steady`: how many were held back since the last one.
    pub fn pass(&self, steady: Timestamp) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let after = (steady + Self::EVERY).as_nanos();
        // Whoever moves `next` writes; the others of the same moment are held back.
        if steady.as_nanos() >= next
            && self
                .next
                .compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            return Some(self.held_back.swap(0, Ordering::Relaxed));
        }
        self.held_back.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
        }
    }

    fn lines(format: LineFormat) -> (Lines, impl Subscriber + Send + Sync, LevelControl) {
        let lines = Lines::default();
        let writer = lines.clone();
        let (subscriber, control) = subscriber(Level::default(), format, move || writer.clone());
        (lines, subscriber, control)
    }

    #[test]
    fn json_lines_have_the_names_of_the_reference() {
        let (lines, subscriber, _control) = lines(LineFormat::Json);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(port = 8081, path = %"a\"b", "up\nand running");
        });
        let line: Value = serde_json::from_str(&lines.take()).unwrap();
        assert_eq!(line["@message"], "up\nand running");
        assert_eq!(line["level"], "info");
        assert_eq!(line["port"], 8081);
        assert_eq!(line["path"], "a\"b");
        assert!(line["@timestamp"].is_string());
    }

    #[test]
    fn the_level_can_be_changed_while_running() {
        let (lines, subscriber, control) = lines(LineFormat::Text);
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("one");
            control.set("debug".parse().unwrap());
            tracing::debug!("two");
            control.set("ERROR".parse().unwrap());
            tracing::warn!("three");
        });
        let text = lines.take();
        assert!(text.contains("two"), "{text}");
        assert!(!text.contains("one") && !text.contains("three"), "{text}");
        assert_eq!(control.get().to_string(), "error");
    }

    #[test]
    fn a_throttle_lets_one_through_and_counts_the_rest() {
        let throttle = Throttle::default();
        let at = Timestamp::from_secs;
        assert_eq!(throttle.pass(at(1)), Some(0));
        assert_eq!(throttle.pass(at(2)), None);
        assert_eq!(throttle.pass(at(10)), None);
        assert_eq!(throttle.pass(at(11)), Some(2));
        assert_eq!(throttle.pass(at(11)), None);
    }

    #[test]
    fn levels_of_the_reference_are_known() {
        for (text, want) in [
            ("WARNING", LevelFilter::WARN),
            ("panic", LevelFilter::ERROR),
            ("Trace", LevelFilter::TRACE),
        ] {
            assert_eq!(text.parse::<Level>().unwrap().0, want);
        }
        assert!("verbose".parse::<Level>().is_err());
    }
}

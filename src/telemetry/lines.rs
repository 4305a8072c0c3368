//! Log lines on their way out. Whoever logs leaves a line in a queue and goes on; a thread of its
//! own writes. A pipe that nobody reads, or a disk that hangs, holds up that thread and nobody else:
//! what finds the queue full is dropped and counted.

use std::{
    fs::File,
    io,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use crate::telemetry::{family::Family, page};

/// Most bytes that wait; as many again may be on their way to the file. Thousands of lines.
const ROOM: usize = 1 << 20;

/// The queue. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Lines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is something to write.
    filled: Condvar,
    /// Everything is written.
    emptied: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<u8>,
    is_writing: bool,
}

impl Lines {
    /// To standard error.
    ///
    /// # Errors
    /// No thread or no file can be had.
    pub fn to_stderr() -> io::Result<Self> {
        // A file of our own: whoever says last words by `eprintln!` must not wait for a lock that a
        // stuck writer holds.
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        Self::to(File::from(stderr))
    }

    fn to(mut out: impl io::Write + Send + 'static) -> io::Result<Self> {
        let lines = Self::default();
        let written = lines.clone();
        let write = move || {
            let mut told = 0;
            loop {
                written.write_waiting(&mut out);
                told = written.tell_dropped(told);
            }
        };
        thread::Builder::new().name("log".to_owned()).spawn(write)?;
        Ok(lines)
    }

    /// Waits until everything is written, at most about so long. False when something is left.
    pub fn flush(&self, patience: Duration) -> bool {
        let mut queue = self.0.queue.lock();
        while queue.is_writing || !queue.waiting.is_empty() {
            if self.0.emptied.wait_for(&mut queue, patience).timed_out() {
                return false;
            }
        }
        true
    }

    /// Lines that found no room, or could not be written.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Appends the counter in Prometheus' text format.
    pub fn render(&self, out: &mut String) {
        let mut dropped = Family::counter(
            "porteiro_log_lines_dropped_total",
            "Log lines that were lost because standard error did not take them in time",
        );
        dropped.count(&[], self.dropped());
        out.push_str(&page::render(dropped.finish().as_slice()));
    }

    fn push(&self, line: &[u8]) {
        let mut queue = self.0.queue.lock();
        if queue.waiting.len().saturating_add(line.len()) > ROOM {
            drop(queue);
            self.count_dropped(1);
            return;
        }
        queue.waiting.extend_from_slice(line);
        drop(queue);
        self.0.filled.notify_one();
    }

    fn count_dropped(&self, lines: u64) {
        self.0.dropped.fetch_add(lines, Ordering::Relaxed);
    }

    /// Waits for lines and writes all that are there.
    fn write_waiting(&self, out: &mut impl io::Write) {
        let mut queue = self.0.queue.lock();
        while queue.waiting.is_empty() {
            self.0.filled.wait(&mut queue);
        }
        let lines = std::mem::take(&mut queue.waiting);
        queue.is_writing = true;
        drop(queue);
        if out.write_all(&lines).is_err() {
            // Nobody can be told but by the count.
            let lost = lines.split_inclusive(|byte| *byte == b'\n').count();
            self.count_dropped(lost as u64);
        }
        let mut queue = self.0.queue.lock();
        queue.is_writing = false;
        if queue.waiting.is_empty() {
            self.0.emptied.notify_all();
        }
    }

    /// Says in the log how many lines are missing, now that there is room again; returns what was
    /// told so far.
    fn tell_dropped(&self, told: u64) -> u64 {
        let dropped = self.dropped();
        if dropped > told {
            let lines = dropped - told;
            tracing::warn!(lines, "log lines were lost: nobody took them in time");
        }
        dropped
    }
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

/// A line is written in one go: it is there as a whole or not at all.
impl io::Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// What was written; nothing is while somebody holds the lock.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_out_in_order_and_a_flush_waits_for_the_last() {
        let sink = Sink::default();
        let lines = Lines::to(sink.clone()).unwrap();
        let mut want = String::new();
        for n in 0..1_000 {
            let line = format!("{n}\n");
            (&lines).write_all(line.as_bytes()).unwrap();
            want.push_str(&line);
            if n % 100 == 0 {
                assert!(lines.flush(Duration::from_mins(1)));
                assert_eq!(*sink.0.lock(), want.as_bytes());
            }
        }
        assert!(lines.flush(Duration::from_mins(1)));
        assert_eq!(*sink.0.lock(), want.as_bytes());
        assert_eq!(lines.dropped(), 0);
    }

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read() {
        let sink = Sink::default();
        let lines = Lines::to(sink.clone()).unwrap();
        let stuck = sink.0.lock();
        let line = [b'x'; 1_023];
        let count = 4 * ROOM / 1_024;
        for _ in 0..count {
            (&lines).write_all(&[&line[..], b"\n"].concat()).unwrap();
        }
        assert!(!lines.flush(Duration::from_millis(1)));
        let dropped = usize::try_from(lines.dropped()).unwrap();
        assert!(dropped >= count / 2, "{dropped}");
        drop(stuck);
        assert!(lines.flush(Duration::from_mins(1)));
        let written = sink.0.lock().len();
        assert_eq!(written, (count - dropped) * 1_024, "whole lines");
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        struct Closed;
        impl io::Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        (&lines).write_all(b"one\n").unwrap();
        (&lines).write_all(b"two\n").unwrap();
        lines.write_waiting(&mut Closed);
        assert_eq!(lines.dropped(), 2);
        assert!(lines.flush(Duration::ZERO));
    }
}

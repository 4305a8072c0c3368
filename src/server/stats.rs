//! What happened to connections, counted. Calls are counted where they are decided.

use std::{
    fmt::Write as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::runtime::RuntimeMetrics;

/// Counters of the process. Touched once or twice in the life of a connection, so sharing them
/// between workers costs nothing.
#[derive(Debug)]
pub struct Stats {
    /// gRPC connections that were handed to a worker.
    pub(super) accepted: AtomicU64,
    /// Connections closed at once because there were too many.
    pub(super) refused: AtomicU64,
    /// Guests on the gRPC port that did not speak HTTP/2.
    pub(super) strangers: AtomicU64,
    /// Connections that were asked to leave because of their age.
    pub(super) aged: AtomicU64,
    /// Connections that were closed hard: grace or deadline passed.
    pub(super) cut: AtomicU64,
    /// Connections cut because the client left answers unread.
    pub(super) stalled: AtomicU64,
    /// Connections that were asked to leave because nothing was asked over them.
    pub(super) idle: AtomicU64,
    /// Calls refused because too many waited.
    pub(super) shed: AtomicU64,
    /// Calls whose request was complete after their timeout.
    pub(super) expired: AtomicU64,
    /// TLS handshakes of gRPC clients that came to nothing.
    pub(super) handshakes_failed: AtomicU64,
    /// Times that changed certificates were taken over.
    pub(super) certificates_read: AtomicU64,
    /// Times that changed certificates were of no use.
    pub(super) certificates_refused: AtomicU64,
    /// Open gRPC connections of each worker.
    open: Vec<Arc<AtomicUsize>>,
    /// gRPC calls of each worker.
    calls: Vec<Arc<Calls>>,
    /// The runtime of each worker, once it runs.
    runtimes: Vec<OnceLock<RuntimeMetrics>>,
}

impl Stats {
    /// For that many workers, at least one.
    pub fn new(workers: usize) -> Self {
        Self {
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            aged: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            handshakes_failed: AtomicU64::new(0),
            certificates_read: AtomicU64::new(0),
            certificates_refused: AtomicU64::new(0),
            open: (0..workers.max(1)).map(|_| Arc::default()).collect(),
            calls: (0..workers.max(1)).map(|_| Arc::default()).collect(),
            runtimes: (0..workers.max(1)).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Open gRPC connections of each worker.
    pub fn open(&self) -> Vec<usize> {
        self.open
            .iter()
            .map(|open| open.load(Ordering::Relaxed))
            .collect()
    }

    /// Tells how to see the load of a worker.
    pub(super) fn works(&self, worker: usize, runtime: RuntimeMetrics) {
        if let Some(place) = self.runtimes.get(worker) {
            // A worker starts once.
            let _ = place.set(runtime);
        }
    }

    /// Where a worker counts its calls.
    pub(super) fn calls_of(&self, worker: usize) -> Arc<Calls> {
        self.calls.get(worker).cloned().unwrap_or_default()
    }

    /// The worker with the fewest open connections, the first of equals, and how many are open in
    /// all.
    pub(super) fn fewest(&self) -> (usize, usize) {
        let open = self.open();
        let fewest = open.iter().enumerate().min_by_key(|(_, open)| **open);
        (fewest.map_or(0, |(worker, _)| worker), open.iter().sum())
    }

    /// Counts a connection as open on a worker until the guard is dropped.
    pub(super) fn opened(&self, worker: usize) -> Open {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let open = self.open.get(worker).cloned().unwrap_or_default();
        open.fetch_add(1, Ordering::Relaxed);
        Open(open)
    }

    /// Appends the counters in Prometheus' text format.
    pub fn render(&self, out: &mut String) {
        let counters = [
            (
                "porteiro_connections_accepted_total",
                "gRPC connections that were handed to a worker.",
                &self.accepted,
            ),
            (
                "porteiro_connections_refused_total",
                "gRPC connections closed at once because there were too many.",
                &self.refused,
            ),
            (
                "porteiro_connections_not_http2_total",
                "Connections on the gRPC port that did not speak HTTP/2.",
                &self.strangers,
            ),
            (
                "porteiro_connections_aged_total",
                "gRPC connections that were asked to leave because of their age.",
                &self.aged,
            ),
            (
                "porteiro_connections_cut_total",
                "gRPC connections closed hard because the grace or the deadline had passed.",
                &self.cut,
            ),
            (
                "porteiro_connections_stalled_total",
                "gRPC connections cut because the client left answers unread.",
                &self.stalled,
            ),
            (
                "porteiro_connections_idle_total",
                "gRPC connections that were asked to leave because nothing was asked over them.",
                &self.idle,
            ),
            (
                "porteiro_calls_shed_total",
                "gRPC calls refused with UNAVAILABLE because max-concurrent-calls were waiting.",
                &self.shed,
            ),
            (
                "porteiro_calls_expired_total",
                "gRPC calls whose request was complete only after their timeout; not decided.",
                &self.expired,
            ),
            (
                "porteiro_tls_handshakes_failed_total",
                "TLS handshakes of gRPC clients that came to nothing.",
                &self.handshakes_failed,
            ),
            (
                "porteiro_tls_certificate_reloads_total",
                "Times that changed certificates were taken over.",
                &self.certificates_read,
            ),
            (
                "porteiro_tls_certificate_reloads_refused_total",
                "Times that changed certificates were of no use, and the old ones stayed.",
                &self.certificates_refused,
            ),
        ];
        for (name, help, counter) in counters {
            let value = counter.load(Ordering::Relaxed);
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}"
            );
        }
        let name = "porteiro_connections_open";
        let _ = writeln!(
            out,
            "# HELP {name} Open gRPC connections.\n# TYPE {name} gauge"
        );
        for (worker, open) in self.open().into_iter().enumerate() {
            let _ = writeln!(out, "{name}{{worker=\"{worker}\"}} {open}");
        }
        let name = "porteiro_worker_calls_total";
        let _ = writeln!(
            out,
            "# HELP {name} gRPC calls that came to a worker.\n# TYPE {name} counter"
        );
        for (worker, calls) in self.calls.iter().enumerate() {
            let calls = calls.0.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}{{worker=\"{worker}\"}} {calls}");
        }
        let name = "porteiro_worker_busy_seconds_total";
        let _ = writeln!(
            out,
            "# HELP {name} Time that a worker had something to do; its rate is the busy share.\n\
             # TYPE {name} counter"
        );
        for (worker, runtime) in self.runtimes.iter().enumerate() {
            let busy = runtime
                .get()
                .map(|runtime| runtime.worker_total_busy_duration(0));
            let busy = busy.unwrap_or_default().as_secs_f64();
            let _ = writeln!(out, "{name}{{worker=\"{worker}\"}} {busy}");
        }
    }
}

/// Calls of a worker, on a cache line of its own: only that worker writes it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Calls(AtomicU64);

impl Calls {
    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// One open connection; counted until it is dropped.
#[derive(Debug)]
pub(super) struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_with_the_fewest_is_next() {
        let stats = Stats::new(3);
        let a = stats.opened(stats.fewest().0);
        let _b = stats.opened(stats.fewest().0);
        let _c = stats.opened(stats.fewest().0);
        assert_eq!(stats.open(), [1, 1, 1]);
        let _d = stats.opened(stats.fewest().0);
        assert_eq!(stats.open(), [2, 1, 1]);
        drop(a);
        let _e = stats.opened(2);
        assert_eq!(stats.fewest(), (0, 4));
    }

    #[test]
    fn the_text_has_each_counter_once() {
        let stats = Stats::new(2);
        let _open = stats.opened(1);
        let mut text = String::new();
        stats.render(&mut text);
        assert!(text.contains("\nporteiro_connections_accepted_total 1\n"));
        assert!(text.contains("porteiro_connections_open{worker=\"0\"} 0\n"));
        assert!(text.contains("porteiro_connections_open{worker=\"1\"} 1\n"));
    }
}

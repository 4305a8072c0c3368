//! Whether a connection takes what it is given.
//!
//! A client that asks and does not read costs memory for as long as it likes, and a PING that it
//! answers says nothing about that. So two things are watched: the socket, which takes no more when
//! the client stops reading it, and the answers, whose bodies nobody fetches when the client gives
//! them no HTTP/2 window. A connection where something waits and nothing moves is cut.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// What happens on one connection. It belongs to one thread at a time, so that loads and stores do
/// where others would need to add at once.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The socket takes no more.
    blocked: AtomicBool,
    /// Pieces of answers that wait to be fetched.
    owed: AtomicU64,
    /// Moves with every byte written and every piece fetched.
    moves: AtomicU64,
    /// Calls that came in.
    calls: AtomicU64,
    /// Calls whose answer is not over.
    open: AtomicU64,
    /// Calls that wait for a store or a permit.
    waiting: AtomicUsize,
    /// So many calls came at once that we are behind.
    behind: AtomicBool,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

fn sub(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_sub(n), Relaxed);
}

impl Pulse {
    /// A call came in.
    pub(super) fn call_begins(&self) {
        add(&self.calls, 1);
        add(&self.open, 1);
    }

    /// Its answer is over, or nobody wants it any more.
    pub(super) fn call_ends(&self) {
        sub(&self.open, 1);
    }

    /// A call waits.
    pub(super) fn wait_begins(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    /// It does so no more.
    pub(super) fn wait_ends(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Calls that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Says whether more calls than usual came at once.
    pub(super) fn set_behind(&self, behind: bool) {
        self.behind.store(behind, Relaxed);
    }

    /// What was said last.
    pub(super) fn is_behind(&self) -> bool {
        self.behind.load(Relaxed)
    }

    /// A piece of an answer can be fetched.
    pub(super) fn owes(&self) {
        add(&self.owed, 1);
    }

    /// It was fetched, or nobody wants it any more.
    pub(super) fn fetched(&self) {
        sub(&self.owed, 1);
        add(&self.moves, 1);
    }

    /// Calls so far; none when some are open.
    fn calls_if_idle(&self) -> Option<u64> {
        (self.open.load(Relaxed) == 0).then(|| self.calls.load(Relaxed))
    }

    fn waits(&self) -> bool {
        self.blocked.load(Relaxed) || self.owed.load(Relaxed) > 0
    }
}

/// A socket whose writes are watched.
#[derive(Debug)]
pub(super) struct Watched<I> {
    pub(super) io: I,
    pub(super) pulse: Arc<Pulse>,
}

impl<I> Watched<I> {
    fn saw<T>(&self, result: Poll<T>) -> Poll<T> {
        self.pulse.blocked.store(result.is_pending(), Relaxed);
        if result.is_ready() {
            add(&self.pulse.moves, 1);
        }
        result
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

/// Not vectored, see [`Rewound`](super::preface::Rewound).
impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        self.saw(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS writes what it holds back.
        match Pin::new(&mut self.io).poll_flush(cx) {
            Poll::Pending => self.saw(Poll::Pending),
            ready @ Poll::Ready(_) => ready,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_shutdown(cx);
        self.saw(result)
    }
}

/// Finds out that something waits and nothing moves.
#[derive(Debug)]
pub(super) struct Stall {
    pulse: Arc<Pulse>,
    patience: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    moves: u64,
}

impl Stall {
    /// `patience` is how long nothing may move.
    pub(super) fn new(pulse: Arc<Pulse>, patience: Duration) -> Self {
        Self {
            pulse,
            patience,
            timer: None,
            moves: 0,
        }
    }

    /// To be asked after the connection was polled. Ready when it is stalled.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.pulse.waits() {
            self.timer = None;
            return Poll::Pending;
        }
        loop {
            let moves = self.pulse.moves.load(Relaxed);
            let (patience, seen) = (self.patience, &mut self.moves);
            let timer = self.timer.get_or_insert_with(|| {
                *seen = moves;
                Box::pin(sleep(patience))
            });
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if *seen == moves {
                return Poll::Ready(());
            }
            self.timer = None;
        }
    }
}

/// Finds out that nothing is asked any more.
#[derive(Debug)]
pub(super) struct Idle {
    pulse: Arc<Pulse>,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
    calls: Option<u64>,
}

impl Idle {
    pub(super) fn new(pulse: Arc<Pulse>, patience: Duration) -> Self {
        Self {
            pulse,
            patience,
            timer: Box::pin(sleep(patience)),
            calls: Some(0),
        }
    }

    /// Ready when no call came and none was open for between once and twice the patience.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let before = self.calls;
            self.calls = self.pulse.calls_if_idle();
            self.timer = Box::pin(sleep(self.patience));
            if self.calls.is_some() && self.calls == before {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

//! Waiting for an instant to the microsecond.

use std::io;

use rustix::{
    fd::OwnedFd,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};
use tokio::{io::unix::AsyncFd, task::yield_now};

use crate::model::time::{NANOS_PER_SECOND, Span};

/// Waits shorter than this are spent looking at sockets: a sleep and a wake-up take as long.
const SHORT: Span = Span::from_micros(20);

/// A timer of the kernel. The runtime's own timers are rounded up to whole milliseconds, which is
/// twenty times the latency that is to be measured.
#[derive(Debug)]
pub(super) struct Pace {
    timer: AsyncFd<OwnedFd>,
}

impl Pace {
    /// A timer for the runtime of this thread.
    #[expect(
        deprecated,
        reason = "unsound only for descriptors that are not owned; its successor is an unsafe function"
    )]
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            timer: AsyncFd::new(timer)?,
        })
    }

    /// Lets the thread do other things for `span`; returns early when it is short.
    pub(super) async fn wait(&self, span: Span) -> io::Result<()> {
        if span < SHORT {
            yield_now().await;
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: timespec(span),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.timer.readable().await?;
            let mut expirations = [0; 8];
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer, &mut expirations)?));
            match read {
                Ok(read) => return read.map(drop),
                // Not expired: an old readiness was seen.
                Err(_would_block) => {}
            }
        }
    }
}

fn timespec(span: Span) -> Timespec {
    let part = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    Timespec {
        tv_sec: part(span.as_nanos() / NANOS_PER_SECOND),
        tv_nsec: part(span.as_nanos() % NANOS_PER_SECOND),
    }
}

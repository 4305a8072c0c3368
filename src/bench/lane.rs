//! A thread that sends its share of the calls on its own connections.

use std::{
    cell::{Cell, RefCell},
    io,
    num::NonZeroU64,
    rc::Rc,
    thread,
};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    runtime,
    sync::{Notify, mpsc},
    task::{spawn_local, yield_now},
    time::{sleep, timeout},
};

use crate::{
    bench::{
        Plan,
        call::{Acquired, Answer, Failure, Head, Overall},
        keys::Keys,
        lease,
        pace::Pace,
        record::{Instants, Record},
        schedule::{Schedule, Share},
        template::Template,
        wire::{Begun, Wire},
    },
    model::time::{Clock, NANOS_PER_SECOND, Span, Timestamp},
};

/// Calls that are sent in a row, when many are due, before answers are looked at.
const BURST: u32 = 64;

/// One rate to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Calls per second of all lanes.
    pub(super) rate: NonZeroU64,
    /// When the schedule starts: the same for all lanes.
    pub(super) start: Timestamp,
}

/// What a lane says.
#[derive(Debug)]
pub(super) enum Said {
    /// All connections are open.
    Ready,
    /// A rate was measured.
    Measured(Box<Record>),
    /// It cannot go on.
    Failed(io::Error),
}

/// The ends of a lane that the run holds. Dropping `steps` ends the lane.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) steps: mpsc::Sender<Step>,
    pub(super) said: mpsc::Receiver<Said>,
}

/// Starts a lane. `plan` is the whole plan, `share` says which part of it is the lane's.
pub(super) fn spawn(plan: Plan, share: Share, clock: Clock) -> io::Result<Handle> {
    let (steps, todo) = mpsc::channel(1);
    let (say, said) = mpsc::channel(1);
    thread::Builder::new()
        .name(format!("lane-{}", share.index))
        .spawn(move || {
            let work = async {
                if let Err(error) = work(plan, share, clock, todo, &say).await {
                    // Nobody listens when the run has failed elsewhere.
                    let _ = say.send(Said::Failed(error)).await;
                }
            };
            let runtime = runtime::Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .build_local(runtime::LocalOptions::default());
            match runtime {
                Ok(runtime) => runtime.block_on(work),
                Err(error) => drop(say.blocking_send(Said::Failed(error))),
            }
        })?;
    Ok(Handle { steps, said })
}

async fn work(
    plan: Plan,
    share: Share,
    clock: Clock,
    mut todo: mpsc::Receiver<Step>,
    say: &mpsc::Sender<Said>,
) -> io::Result<()> {
    let mut lane = Lane::open(plan, share, clock).await?;
    if say.send(Said::Ready).await.is_err() {
        return Ok(());
    }
    while let Some(step) = todo.recv().await {
        let record = lane.measure(step).await?;
        if say.send(Said::Measured(Box::new(record))).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// The parts of a lane.
struct Lane {
    plan: Plan,
    share: Share,
    shared: Rc<Shared>,
    pace: Pace,
    keys: Keys,
    template: Template,
    in_flight: Rc<InFlight>,
    max_in_flight: usize,
}

impl Lane {
    async fn open(plan: Plan, share: Share, clock: Clock) -> io::Result<Self> {
        let connections = (share.index..plan.connections.get()).step_by(share.of);
        let head = |method| Head::new(&plan.target, method, plan.deadline);
        let shared = Shared {
            clock,
            wire: Wire::open(&plan.target, connections.count()).await?,
            head: head(plan.template.method()),
            leases: plan.template.takes_leases().then_some(plan.hold),
            release: head(lease::RELEASE),
            let_go: Notify::new(),
        };
        Ok(Self {
            shared: Rc::new(shared),
            pace: Pace::new()?,
            keys: Keys::new(plan.distribution, plan.keys, share.seed(plan.seed)),
            template: plan.template.clone(),
            in_flight: Rc::default(),
            max_in_flight: plan.max_in_flight.get().div_ceil(share.of),
            plan,
            share,
        })
    }

    /// Sends the lane's calls of one rate and waits for their answers.
    async fn measure(&mut self, step: Step) -> io::Result<Record> {
        let from = step.start + self.plan.warm_up;
        let to = from + self.plan.duration;
        let give_up = to + self.plan.drain;
        let record = Rc::new(RefCell::new(Record::new(from, to)));
        let opened = self.shared.wire.opened();
        let schedule = Schedule::new(self.plan.arrivals, step.rate, self.share, self.plan.seed);
        let mut due = schedule
            .map(|offset| step.start + offset)
            .take_while(|due| *due < to);

        let cpu = thread_cpu();
        // Until then it was not the generator that held calls back.
        let mut free_since = step.start;
        let mut in_a_row = 0;
        for due in due.by_ref() {
            let mut now = self.until(due, &mut in_a_row).await?;
            if self.in_flight.count.get() >= self.max_in_flight {
                self.in_flight
                    .below(self.max_in_flight, now.until(give_up))
                    .await;
                now = self.shared.clock.now().steady;
                free_since = now;
            }
            if now >= give_up {
                record.borrow_mut().never_sent(due, now);
                break;
            }
            let lag = now.since(due.max(free_since));
            record.borrow_mut().issued(due, lag);
            self.issue(&record, Instants { due, sent: now });
        }
        let now = self.shared.clock.now().steady;
        record.borrow_mut().busy = (thread_cpu().saturating_sub(cpu), now.since(step.start));
        for due in due {
            record.borrow_mut().never_sent(due, now);
        }

        self.in_flight.below(1, now.until(give_up)).await;
        // Those that are opened now because we break them do not count.
        let reopened = self.shared.wire.opened() - opened;
        if self.in_flight.count.get() > 0 {
            record.borrow_mut().closing = true;
            self.shared.wire.reopen();
            self.shared.let_go.notify_waiters();
            // They are told by their connections, which are gone.
            self.in_flight.below(1, Span::MAX).await;
        }
        let mut record = record.replace(Record::new(from, to));
        record.reopened = reopened;
        Ok(record)
    }

    /// Waits until `due`, and lets answers be read now and then when it has passed already.
    async fn until(&self, due: Timestamp, in_a_row: &mut u32) -> io::Result<Timestamp> {
        *in_a_row += 1;
        if *in_a_row >= BURST {
            *in_a_row = 0;
            yield_now().await;
        }
        loop {
            let now = self.shared.clock.now().steady;
            if now >= due {
                return Ok(now);
            }
            *in_a_row = 0;
            self.pace.wait(now.until(due)).await?;
        }
    }

    /// Sends one call on the next connection that takes it.
    fn issue(&mut self, record: &Rc<RefCell<Record>>, instants: Instants) {
        let message = self.template.encode(self.keys.draw());
        let call = Call {
            lane: Rc::clone(&self.shared),
            record: Rc::clone(record),
            instants,
            _place: Place::of(&self.in_flight),
        };
        match self.shared.wire.begin(&self.shared.head, &message) {
            Begun::Nowhere => call.settle(Err(Failure::NoConnection)),
            begun => drop(spawn_local(call.finish(begun, message))),
        }
    }
}

/// What the calls of a lane share.
struct Shared {
    clock: Clock,
    wire: Wire,
    head: Head,
    /// Calls take leases, which are held so long; none: they only ask.
    leases: Option<Span>,
    release: Head,
    /// Leases are not held any longer.
    let_go: Notify,
}

/// A call under way.
struct Call {
    lane: Rc<Shared>,
    record: Rc<RefCell<Record>>,
    instants: Instants,
    _place: Place,
}

impl Call {
    async fn finish(mut self, begun: Begun, message: Bytes) {
        match self.lane.leases {
            None => {
                let answer = self.answer::<Overall>(begun, message).await;
                self.settle(answer.map(Overall::answer));
            }
            Some(hold) => {
                let answer = self.answer::<Acquired>(begun, message).await;
                self.settle(
                    answer
                        .as_ref()
                        .map(Acquired::answer)
                        .map_err(|failure| *failure),
                );
                if let Ok(acquired) = answer
                    && !acquired.lease_id.is_empty()
                {
                    self.hold(acquired.lease_id, hold).await;
                }
            }
        }
    }

    async fn answer<M>(&mut self, begun: Begun, message: Bytes) -> Result<M, Failure>
    where
        M: prost::Message + Default,
    {
        let lane = &self.lane;
        let sent = Cell::new(self.instants.sent);
        let later = || sent.set(lane.clock.now().steady);
        let answer = lane.wire.finish(&lane.head, &message, begun, later).await;
        self.instants.sent = sent.get();
        answer
    }

    /// Holds a lease and gives it back. To the millisecond: the time a piece of work takes is
    /// nobody's latency.
    async fn hold(self, lease_id: String, hold: Span) {
        tokio::select! {
            () = sleep(hold.into()) => {}
            () = self.lane.let_go.notified() => {}
        }
        let wanted = self.lane.clock.now().steady;
        let released = lease::release(&self.lane.wire, &self.lane.release, lease_id).await;
        let now = self.lane.clock.now().steady;
        self.record
            .borrow_mut()
            .gave_back(self.instants.due, wanted, now, released);
    }

    fn settle(&self, answer: Result<Answer, Failure>) {
        let now = self.lane.clock.now().steady;
        self.record.borrow_mut().settled(self.instants, now, answer);
    }
}

/// How many calls wait for an answer.
#[derive(Debug, Default)]
struct InFlight {
    count: Cell<usize>,
    /// Somebody waits for it to fall.
    watched: Cell<bool>,
    fell: Notify,
}

impl InFlight {
    /// Waits until fewer than `bound` are there, at most for `longest`.
    async fn below(&self, bound: usize, longest: Span) {
        self.watched.set(true);
        let falls = async {
            while self.count.get() >= bound {
                self.fell.notified().await;
            }
        };
        // Which of both it was is seen by the count.
        let _ = timeout(longest.into(), falls).await;
        self.watched.set(false);
    }
}

/// The place of one call among those in flight.
struct Place(Rc<InFlight>);

impl Place {
    fn of(in_flight: &Rc<InFlight>) -> Self {
        in_flight.count.set(in_flight.count.get() + 1);
        Self(Rc::clone(in_flight))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get().saturating_sub(1));
        if self.0.watched.get() {
            self.0.fell.notify_one();
        }
    }
}

/// CPU time of this thread.
fn thread_cpu() -> Span {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Span::from_nanos(part(time.tv_sec) * NANOS_PER_SECOND + part(time.tv_nsec))
}

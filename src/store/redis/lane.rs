//! A worker's own way to Redis: a queue, a connection, and a task that sends what waits.
//!
//! Requests that come while others are on their way wait together and leave in one message, so a
//! busy worker pays for few messages and an idle one sends at once. Nothing is delayed on purpose.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::RngExt as _;
use redis::{RedisError, ServerErrorKind, Value};
use tokio::{
    select,
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    model::time::{Span, Timestamp},
    store::{
        charges::Charges,
        redis::{
            batch::{Batch, Wanted},
            connect::{self, Connection},
            error::StoreError,
            flight::Flight,
            key::HashTag,
            reply::Reply,
            script,
            shared::Shared,
            stats::Stat,
        },
    },
};

/// Most messages of one worker on their way; in a cluster, to one slot, so that a node that hangs
/// holds up only its own. Few, so that under load requests gather in large messages, which cost less
/// each; more than one, so that Redis never waits for us.
const MOST_FLYING: usize = 4;

/// Pauses between attempts to connect, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// A worker's way to Redis.
#[derive(Debug)]
pub(super) struct Lane {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// The task is told that something waits.
    wake: Notify,
    /// There is a line, or no hope for one now.
    settled: Notify,
    /// The task has ended, with its runtime or with the store.
    gone: AtomicBool,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Parcel>,
    /// Requests in the queue and on their way.
    waiting: usize,
    /// Messages on their way, by slot.
    flying: Vec<(u16, usize)>,
    /// False after an attempt to connect failed, until one did not.
    reachable: bool,
    /// The connection, for messages that are no batch.
    line: Option<Line>,
}

/// An open connection, and whom to tell when it is no good any more.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) connection: Connection,
    pub(super) lost: Arc<Notify>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

/// A batch and those who wait for it. Whatever happens to it, they are told.
#[derive(Debug)]
struct Parcel {
    lane: Arc<Lane>,
    slot: u16,
    batch: Batch,
    requests: usize,
    sent: bool,
    flight: Arc<Flight>,
}

impl Drop for Parcel {
    fn drop(&mut self) {
        let mut state = self.lane.state.lock();
        state.waiting -= self.requests;
        if self.sent {
            state.flying.retain_mut(|(slot, count)| {
                *count -= usize::from(*slot == self.slot);
                *count > 0
            });
        }
        drop(state);
        self.flight.land(Err(StoreError::Broken));
    }
}

impl Lane {
    /// A lane whose task runs on the present runtime.
    pub(super) fn start(shared: Arc<Shared>) -> Arc<Self> {
        let lane = Arc::new(Self {
            shared,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                waiting: 0,
                flying: Vec::new(),
                reachable: true,
                line: None,
            }),
            wake: Notify::new(),
            settled: Notify::new(),
            gone: AtomicBool::new(false),
        });
        tokio::spawn(run(Arc::clone(&lane)));
        lane
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Requests that wait here.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Puts a request into the next message. Returns what to wait for, and where in the reply its
    /// answer begins.
    pub(super) fn enqueue(
        self: &Arc<Self>,
        charges: &Charges<'_>,
        tag: &HashTag,
        wanted: Wanted,
        now: Timestamp,
    ) -> Result<(Arc<Flight>, usize), StoreError> {
        self.put(charges, tag, wanted, now, None)
    }

    /// As [`Lane::enqueue`], for a decision that is void after `latest` by the store's clock.
    pub(super) fn enqueue_until(
        self: &Arc<Self>,
        charges: &Charges<'_>,
        tag: &HashTag,
        now: Timestamp,
        latest: Option<Timestamp>,
    ) -> Result<(Arc<Flight>, usize), StoreError> {
        self.put(charges, tag, Wanted::Decision, now, latest)
    }

    fn put(
        self: &Arc<Self>,
        charges: &Charges<'_>,
        tag: &HashTag,
        wanted: Wanted,
        now: Timestamp,
        latest: Option<Timestamp>,
    ) -> Result<(Arc<Flight>, usize), StoreError> {
        let mut state = self.state.lock();
        if !state.reachable || self.is_gone() {
            return Err(StoreError::Unreachable);
        }
        if state.waiting >= self.shared.options.max_waiting {
            return Err(StoreError::Overloaded);
        }
        // Only in a cluster do slots have to be kept apart.
        let slot = if self.shared.options.is_cluster() {
            tag.slot
        } else {
            0
        };
        let fits = |parcel: &Parcel| {
            parcel.slot == slot
                && parcel.batch.latest() == latest
                && parcel.batch.has_room_for(charges.list.len())
        };
        let open = state.queue.iter().rposition(fits);
        let place = open.unwrap_or_else(|| {
            state.queue.push_back(Parcel {
                lane: Arc::clone(self),
                slot,
                batch: Batch::until(latest),
                requests: 0,
                sent: false,
                flight: Arc::default(),
            });
            state.queue.len() - 1
        });
        let parcel = &mut state.queue[place];
        let first = parcel.batch.add(charges, tag, wanted, now);
        let first = first.ok_or(StoreError::Unexpected)?;
        parcel.requests += 1;
        let flight = Arc::clone(&parcel.flight);
        state.waiting += 1;
        drop(state);
        if open.is_none() {
            self.wake.notify_one();
        }
        Ok((flight, first))
    }

    /// The next message that may leave.
    fn next(&self) -> Option<Parcel> {
        let mut state = self.state.lock();
        let State { queue, flying, .. } = &mut *state;
        let full = |slot: u16| {
            let count = flying.iter().find(|(of, _)| *of == slot);
            count.is_some_and(|(_, count)| *count >= MOST_FLYING)
        };
        let place = queue.iter().position(|parcel| !full(parcel.slot))?;
        let mut parcel = queue.remove(place)?;
        parcel.sent = true;
        match flying.iter_mut().find(|(of, _)| *of == parcel.slot) {
            Some((_, count)) => *count += 1,
            None => flying.push((parcel.slot, 1)),
        }
        Some(parcel)
    }

    /// The connection of this worker, when there is one.
    ///
    /// # Errors
    /// There is none, and the latest attempt to open one failed.
    pub(super) async fn line(&self) -> Result<Line, StoreError> {
        loop {
            let settled = self.settled.notified();
            {
                let state = self.state.lock();
                if let Some(line) = &state.line {
                    return Ok(line.clone());
                }
                if !state.reachable || self.is_gone() {
                    return Err(StoreError::Unreachable);
                }
            }
            settled.await;
        }
    }

    fn set_line(&self, line: Option<Line>) {
        self.state.lock().line = line;
        self.settled.notify_waiters();
    }

    /// Whether there is hope. Without, everybody who waits is told so.
    fn set_reachable(&self, reachable: bool) {
        let mut state = self.state.lock();
        state.reachable = reachable;
        let lost = if reachable {
            VecDeque::new()
        } else {
            std::mem::take(&mut state.queue)
        };
        drop(state);
        self.settled.notify_waiters();
        for parcel in lost {
            parcel.flight.land(Err(StoreError::Unreachable));
        }
    }
}

/// Marks the lane when its task ends, however it does.
struct Gone(Arc<Lane>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Relaxed);
        self.0.set_reachable(false);
    }
}

async fn run(lane: Arc<Lane>) {
    let gone = Gone(lane);
    let lane = &gone.0;
    select! {
        () = keep_connected(lane) => {}
        () = lane.shared.stop.cancelled() => {}
    }
}

async fn keep_connected(lane: &Arc<Lane>) {
    let shared = &lane.shared;
    let mut pause = FIRST_PAUSE;
    loop {
        let lost = Arc::new(Notify::new());
        let opening = connect::open(&shared.options, &lost);
        match timeout(shared.options.connect_timeout.into(), opening).await {
            Ok(Ok(connection)) => {
                shared.stats.count(Stat::Connections);
                pause = FIRST_PAUSE;
                lane.set_reachable(true);
                lane.set_line(Some(Line {
                    connection: connection.clone(),
                    lost: Arc::clone(&lost),
                }));
                serve(lane, connection, &lost).await;
                lane.set_line(None);
                continue;
            }
            Ok(Err(error)) => shared.cannot_connect(StoreError::of(&error), &error.to_string()),
            Err(_) => shared.cannot_connect(StoreError::Timeout, "no answer to our greeting"),
        }
        lane.set_reachable(false);
        let jitter = rand::rng().random_range(0.75..1.25);
        sleep(pause.mul_f64(jitter)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Sends what waits until the connection is no good any more.
async fn serve(lane: &Arc<Lane>, connection: Connection, lost: &Arc<Notify>) {
    // Dropping the sets ends what is on its way, and those who wait for it are told.
    let mut flying: JoinSet<Result<(), StoreError>> = JoinSet::new();
    let mut renewing: JoinSet<Option<Connection>> = JoinSet::new();
    let clock = &lane.shared.clock;
    let cluster = lane.shared.options.is_cluster();
    let (mut connection, mut since) = (connection, clock.now().steady);
    loop {
        while let Some(parcel) = lane.next() {
            flying.spawn(send(parcel, connection.clone()));
        }
        select! {
            () = lane.wake.notified() => {}
            Some(landed) = flying.join_next(), if !flying.is_empty() => {
                let Ok(Err(error)) = landed else { continue };
                if error.needs_new_connection(cluster) {
                    return;
                }
                let age = since.until(clock.now().steady);
                if cluster && error.may_have_moved() && renewing.is_empty() && age >= RENEWAL {
                    renewing.spawn(renew(Arc::clone(lane), Arc::clone(lost)));
                }
            }
            Some(renewed) = renewing.join_next(), if !renewing.is_empty() => {
                since = clock.now().steady;
                if let Ok(Some(renewed)) = renewed {
                    lane.set_line(Some(Line {
                        connection: renewed.clone(),
                        lost: Arc::clone(lost),
                    }));
                    connection = renewed;
                }
            }
            () = lost.notified() => return,
        }
    }
}

/// How often a cluster is asked anew who serves what, while somebody does not answer. A node that
/// died is followed by another, but the connection does not learn that from silence.
const RENEWAL: Span = Span::from_millis(500);

/// Another connection to a cluster, for what is sent from now on: the present one goes on serving
/// the nodes that answer.
async fn renew(lane: Arc<Lane>, lost: Arc<Notify>) -> Option<Connection> {
    let options = &lane.shared.options;
    let opening = timeout(
        options.connect_timeout.into(),
        connect::open(options, &lost),
    );
    let connection = opening.await.ok()?.ok()?;
    lane.shared.stats.count(Stat::Connections);
    Some(connection)
}

/// Sends one message and tells what came back.
async fn send(parcel: Parcel, mut connection: Connection) -> Result<(), StoreError> {
    let shared = &parcel.lane.shared;
    shared.stats.count(Stat::Messages);
    let result = match timeout(shared.options.silence.into(), ask(&parcel, &mut connection)).await {
        Ok(Ok(value)) => landed(value, &parcel.batch),
        Ok(Err(error)) => {
            let kind = StoreError::of(&error);
            shared.failed_with(kind, &error.to_string());
            Err(kind)
        }
        Err(_) => Err(StoreError::Timeout),
    };
    if let Ok(reply) = &result {
        shared.saw_clock(reply.now());
    }
    let result = result.and_then(|reply| {
        if reply.is_late() {
            return Err(StoreError::Late);
        }
        Ok(reply)
    });
    let error = result.as_ref().err().copied();
    parcel.flight.land(result);
    error.map_or(Ok(()), Err)
}

async fn ask(parcel: &Parcel, connection: &mut Connection) -> Result<Value, RedisError> {
    let shared = &parcel.lane.shared;
    let message = parcel.batch.message(shared.latest());
    let command = |name: &str, script: &str| {
        let mut command = redis::cmd(name);
        command.arg(script).arg(parcel.batch.names().len());
        for name in parcel.batch.names() {
            command.arg(name);
        }
        command.arg(&message);
        if let Some(clock) = &shared.options.test_clock {
            command.arg(clock.now().wall.as_nanos() / 1_000);
        }
        command
    };
    let by_hash = command("EVALSHA", script::decide_hash());
    match connection.call(&by_hash).await {
        Err(error) if error.kind() == ServerErrorKind::NoScript.into() => {
            // Flushed, or another server than before: the text itself, once.
            shared.stats.count(Stat::ScriptsSent);
            connection.call(&command("EVAL", script::DECIDE)).await
        }
        answer => answer,
    }
}

fn landed(value: Value, batch: &Batch) -> Result<Reply, StoreError> {
    let Value::BulkString(bytes) = value else {
        return Err(StoreError::Unexpected);
    };
    Reply::new(bytes.into(), batch.reply_length()).ok_or(StoreError::Unexpected)
}

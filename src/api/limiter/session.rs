//! Session: leases that end with the stream they were taken on.
//!
//! One task per stream reads its messages. It holds the session's guard, whose drop gives all
//! leases back without awaiting anything: whatever ends the task (half-close, reset, a connection
//! that died, a client too slow to read, the server's own end) ends the session. When the server
//! begins to stop, the stream is told, and ended in peace before connections are cut.

use std::{
    future::{Future, pending},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{
        mpsc::{self, Sender, error::TrySendError},
        watch,
    },
    task::{self, JoinSet},
    time::sleep,
};
use tonic::{Status, Streaming};

use super::{acquire, release, words};
use crate::{
    api::{bounds::Bounds, status},
    engine::Engine,
    model::{
        lease::{Holder, LeaseId},
        time::{Span, Timestamp},
    },
    proto::porteiro::v1::{
        AcquireRequest, SessionRequest, SessionResponse,
        session_request::{Message as Said, Open},
        session_response::{Draining, Message as Answer, Opened, Revoked, revoked::By},
    },
    store::{
        lease::{self, MAX_GRACE, RevokedBy},
        leases::SessionGuard,
    },
    telemetry::spans,
};

/// Answers that a client may be behind with before its session is closed.
const BEHIND: usize = 256;
/// Requests of one session that wait in the server.
const WAITING: usize = 1_000;
/// How long a stream that holds nothing may be silent while the server stops: its client may have
/// a request on the way.
const SILENCE: Duration = Duration::from_secs(1);

type Answers = Sender<Result<SessionResponse, Status>>;

/// Opens a session on a stream; returns where its answers come out.
pub(super) fn open(
    engine: Arc<Engine>,
    bounds: Bounds,
    messages: Streaming<SessionRequest>,
) -> mpsc::Receiver<Result<SessionResponse, Status>> {
    let (answers, receiver) = mpsc::channel(BEHIND);
    task::spawn(spans::carried(async move {
        if let Err(status) = run(engine, bounds, messages, &answers).await {
            // The client may be gone; then nobody wants to know.
            let _ = answers.try_send(Err(status));
        }
    }));
    receiver
}

async fn run(
    engine: Arc<Engine>,
    bounds: Bounds,
    mut messages: Streaming<SessionRequest>,
    answers: &Answers,
) -> Result<(), Status> {
    let (open, correlation) = first(&mut messages).await?;
    let (session, mut revoked) = begin(&engine, &open, correlation, answers)?;
    let mut waiting = JoinSet::new();
    let mut stopping = engine.leases().stopping();
    let mut told = false;
    let mut move_by = pin!(sleep(Duration::ZERO));
    loop {
        let leaves = told && waiting.is_empty() && session.guard.leases() == 0;
        tokio::select! {
            message = messages.message() => {
                let Some(SessionRequest { correlation, message }) = message? else {
                    return Ok(());
                };
                match message {
                    Some(Said::Acquire(request)) => {
                        if waiting.len() >= WAITING {
                            return Err(Status::resource_exhausted("too many requests wait"));
                        }
                        let task = session.acquire(&engine, bounds, request, correlation, answers);
                        waiting.spawn(task);
                    }
                    Some(Said::Release(request)) => {
                        let holder = Some(&session.holder);
                        let answer = release::release(&engine, &request, holder).await;
                        send(answers, correlation, answer.map(Answer::Released))?;
                    }
                    Some(Said::Goodbye(_)) => {
                        session.guard.goodbye();
                        return Ok(());
                    }
                    Some(Said::Open(_)) => {
                        let twice = Status::failed_precondition("the session is open already");
                        send(answers, correlation, Err(twice))?;
                    }
                    None => {
                        let empty = Status::invalid_argument("an empty message, or one from a \
                                                              newer client");
                        send(answers, correlation, Err(empty))?;
                    }
                }
            }
            leases = revoked.recv() => match leases {
                Some(leases) => send(answers, 0, Ok(Answer::Revoked(revocation(&leases))))?,
                None => return Err(Status::resource_exhausted("too slow to hear of revocations")),
            },
            Some(_) = waiting.join_next() => {}
            at = begins_to_stop(&mut stopping), if !told => {
                told = true;
                let left = engine.clock().now().steady.until(at);
                move_by.set(sleep(left.into()));
                let draining = Draining { move_by: Some(words::duration(left)) };
                send(answers, 0, Ok(Answer::Draining(draining)))?;
            }
            () = move_by.as_mut(), if told => return Err(stops()),
            () = sleep(SILENCE), if leaves => return Err(stops()),
            () = answers.closed() => return Ok(()),
        }
    }
}

/// Returns when the server begins to stop: by when the stream has to have moved.
async fn begins_to_stop(stopping: &mut watch::Receiver<Option<Timestamp>>) -> Timestamp {
    let begun = stopping.wait_for(Option::is_some).await;
    match begun.ok().and_then(|at| *at) {
        Some(at) => at,
        None => pending().await,
    }
}

fn stops() -> Status {
    Status::unavailable("the server is stopping: open a session elsewhere")
}

fn revocation(revoked: &lease::Revoked) -> Revoked {
    let path = &revoked.path;
    let (by, reason) = match revoked.by {
        RevokedBy::Limit => (By::Limit, format!("the limit {path} was lowered")),
        RevokedBy::Store => (By::Unspecified, "gone from the shared store".to_owned()),
        RevokedBy::Operator if path.is_empty() => (By::Operator, "an operator's wish".to_owned()),
        RevokedBy::Operator => (By::Operator, format!("the limit {path} was reset")),
    };
    Revoked {
        lease_ids: revoked.leases.iter().map(LeaseId::to_string).collect(),
        by: by.into(),
        reason,
    }
}

async fn first(messages: &mut Streaming<SessionRequest>) -> Result<(Open, u64), Status> {
    match messages.message().await? {
        Some(SessionRequest {
            correlation,
            message: Some(Said::Open(open)),
        }) => Ok((open, correlation)),
        Some(_) => Err(Status::failed_precondition(
            "the first message must be Open",
        )),
        None => Err(Status::cancelled("the stream ended before Open")),
    }
}

/// An open session.
struct Session {
    guard: SessionGuard,
    domain: String,
    holder: Holder,
}

fn begin(
    engine: &Engine,
    open: &Open,
    correlation: u64,
    answers: &Answers,
) -> Result<(Session, mpsc::Receiver<lease::Revoked>), Status> {
    let installed = engine.installed();
    let Some(domain) = installed.rules().domain(&open.domain) else {
        return Err(Status::not_found("no rules for this domain"));
    };
    let grace = words::span("grace", open.grace)?
        .unwrap_or(Span::ZERO)
        .min(MAX_GRACE);
    let token = match open.resume_token.as_str() {
        "" => None,
        text => Some(
            u128::from_str_radix(text, 16)
                .map_err(|error| Status::invalid_argument(format!("resume_token: {error}")))?,
        ),
    };
    let now = engine.clock().now();
    let opened = engine
        .leases()
        .open_session(&domain.name, token, grace, now);
    let (opened, guard, revoked) = opened.map_err(status::of_ask)?;
    let answer = Opened {
        resume_token: format!("{:032x}", opened.token),
        boot: engine.leases().boot(),
        leases: u32::try_from(guard.leases()).unwrap_or(u32::MAX),
    };
    send(answers, correlation, Ok(Answer::Opened(answer)))?;
    let holder = words::holder(open.holder.as_ref());
    Ok((
        Session {
            guard,
            domain: open.domain.clone(),
            holder,
        },
        revoked,
    ))
}

impl Session {
    /// A request on the session: its domain and holder are the session's.
    fn acquire(
        &self,
        engine: &Arc<Engine>,
        bounds: Bounds,
        mut request: AcquireRequest,
        correlation: u64,
        answers: &Answers,
    ) -> impl Future<Output = ()> + Send + use<> {
        request.domain.clone_from(&self.domain);
        request.holder = Some(crate::proto::porteiro::v1::Holder {
            id: self.holder.id.to_string(),
            instance: self.holder.instance.to_string(),
        });
        let (engine, answers) = (Arc::clone(engine), answers.clone());
        let session = self.guard.id();
        async move {
            let answer = acquire::answer(&engine, bounds, &request, None, Some(session)).await;
            // A client that does not listen loses its session at the next message.
            let _ = send(&answers, correlation, answer.map(Answer::Acquired));
        }
    }
}

/// Sends an answer, or what is wrong with the message.
///
/// # Errors
/// The client is too far behind, or gone.
fn send(answers: &Answers, correlation: u64, answer: Result<Answer, Status>) -> Result<(), Status> {
    let message = answer.unwrap_or_else(|status| Answer::Problem(release::problem(&status)));
    let response = SessionResponse {
        correlation,
        message: Some(message),
    };
    answers.try_send(Ok(response)).map_err(|error| match error {
        TrySendError::Full(_) => Status::resource_exhausted("the client reads too slowly"),
        TrySendError::Closed(_) => Status::cancelled("the client is gone"),
    })
}

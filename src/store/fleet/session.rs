//! Sessions whose leases live in a shared store.
//!
//! The process that has the stream keeps its leases alive: they are renewed for
//! [`session_life`](crate::store::redis::RedisOptions::session_life) every third of it. When the stream ends, they are ended; when the process dies, they end by their time.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::mpsc, time::sleep};

use crate::{
    model::{
        lease::{EndedBy, LeaseId},
        time::Span,
    },
    store::{
        fleet::Fleet,
        lease::{MAX_GRACE, Opened, Revoked, RevokedBy, SessionId, Stream},
        redis::lease::{Message, gone},
    },
};

/// Renewals of a life.
const RENEWALS: u64 = 3;
/// Leases in one message: bounds how long the store is busy with it.
const TOGETHER: usize = 64;

/// All sessions of a domain in this process.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    inner: Mutex<Inner>,
    kept: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<SessionId, Session>,
    by_token: HashMap<u128, SessionId>,
    of_lease: HashMap<LeaseId, SessionId>,
    opened: u64,
}

#[derive(Debug)]
struct Session {
    token: u128,
    /// Whom its leases follow, in the store.
    owner: String,
    grace: Span,
    incarnation: u32,
    leases: BTreeSet<LeaseId>,
    revoked: mpsc::Sender<Revoked>,
}

impl Sessions {
    /// Whom the leases of a session follow, if it is there and has less than `most`.
    pub(super) fn owner(&self, id: SessionId) -> Option<(String, usize)> {
        let inner = self.inner.lock();
        let session = inner.by_id.get(&id)?;
        Some((session.owner.clone(), session.leases.len()))
    }

    /// Adds leases. False when the session is over meanwhile.
    pub(super) fn add(&self, id: SessionId, leases: &[LeaseId]) -> bool {
        let mut inner = self.inner.lock();
        let Some(session) = inner.by_id.get_mut(&id) else {
            return false;
        };
        session.leases.extend(leases);
        inner
            .of_lease
            .extend(leases.iter().map(|lease| (*lease, id)));
        true
    }

    /// Leases that ended.
    pub(super) fn remove(&self, leases: &[LeaseId]) {
        let mut inner = self.inner.lock();
        for lease in leases {
            let session = inner.of_lease.remove(lease);
            if let Some(session) = session.and_then(|id| inner.by_id.get_mut(&id)) {
                session.leases.remove(lease);
            }
        }
    }

    /// Whom a lease follows.
    pub(super) fn owner_of(&self, lease: LeaseId) -> String {
        let inner = self.inner.lock();
        let session = inner.of_lease.get(&lease);
        let session = session.and_then(|id| inner.by_id.get(id));
        session
            .map(|session| session.owner.clone())
            .unwrap_or_default()
    }

    pub(super) fn leases(&self, id: SessionId) -> usize {
        let inner = self.inner.lock();
        inner
            .by_id
            .get(&id)
            .map_or(0, |session| session.leases.len())
    }

    pub(super) fn len(&self) -> usize {
        self.inner.lock().by_id.len()
    }

    fn close(&self, stream: Stream) -> Option<Session> {
        let mut inner = self.inner.lock();
        let current = inner.by_id.get(&stream.session)?.incarnation;
        if current != stream.incarnation {
            return None;
        }
        let session = inner.by_id.remove(&stream.session)?;
        inner.by_token.remove(&session.token);
        for lease in &session.leases {
            inner.of_lease.remove(lease);
        }
        Some(session)
    }
}

impl Fleet {
    /// Opens a session, or takes over the one of this token if it is here.
    pub(in crate::store) fn open_session(
        self: &Arc<Self>,
        token: Option<u128>,
        grace: Span,
        revoked: mpsc::Sender<Revoked>,
    ) -> Opened {
        let opened = {
            let mut inner = self.sessions.inner.lock();
            let inner = &mut *inner;
            let known = token.and_then(|token| inner.by_token.get(&token)).copied();
            if let Some(session) = known.and_then(|id| inner.by_id.get_mut(&id))
                && let Some(id) = known
            {
                session.incarnation = session.incarnation.wrapping_add(1);
                session.revoked = revoked;
                Opened {
                    stream: Stream {
                        session: id,
                        incarnation: session.incarnation,
                    },
                    token: session.token,
                }
            } else {
                inner.opened += 1;
                let id = SessionId(inner.opened);
                let token = rand::random();
                let session = Session {
                    token,
                    owner: format!("{:032x}", rand::random::<u128>()),
                    grace: grace.min(MAX_GRACE),
                    incarnation: 0,
                    leases: BTreeSet::new(),
                    revoked,
                };
                inner.by_id.insert(id, session);
                inner.by_token.insert(token, id);
                let stream = Stream {
                    session: id,
                    incarnation: 0,
                };
                Opened { stream, token }
            }
        };
        if !self.sessions.kept.swap(true, Ordering::AcqRel)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(keep(Arc::downgrade(self), self.session_life()));
        }
        opened
    }

    /// Leases of a session.
    pub(in crate::store) fn leases_of(&self, session: SessionId) -> usize {
        self.sessions.leases(session)
    }

    /// The client said goodbye: its leases are released.
    pub(in crate::store) fn close_session(self: &Arc<Self>, stream: Stream) {
        if let Some(session) = self.sessions.close(stream) {
            self.end(&session, EndedBy::Released);
        }
    }

    /// A stream was lost: its leases end after the session's grace, unless another stream carries
    /// it on.
    pub(in crate::store) fn lose_session(self: &Arc<Self>, stream: Stream) {
        let grace = {
            let inner = self.sessions.inner.lock();
            let session = inner.by_id.get(&stream.session);
            session.map_or(Span::ZERO, |session| session.grace)
        };
        let fleet = Arc::clone(self);
        let end = move || {
            if let Some(session) = fleet.sessions.close(stream) {
                fleet.end(&session, EndedBy::SessionLost);
            }
        };
        match Handle::try_current() {
            Ok(runtime) if !grace.is_zero() => {
                runtime.spawn(async move {
                    sleep(grace.into()).await;
                    end();
                });
            }
            _ => end(),
        }
    }

    fn end(self: &Arc<Self>, session: &Session, by: EndedBy) {
        let leases: Vec<LeaseId> = session.leases.iter().copied().collect();
        self.end_here(&leases);
        for leases in leases.chunks(TOGETHER) {
            self.post(Message::leave(&session.owner, by, leases));
        }
    }

    async fn keep_once(self: &Arc<Self>) {
        let sessions: Vec<(SessionId, String, Vec<LeaseId>)> = {
            let inner = self.sessions.inner.lock();
            let all = inner.by_id.iter();
            all.map(|(id, session)| {
                let leases = session.leases.iter().copied().collect();
                (*id, session.owner.clone(), leases)
            })
            .collect()
        };
        for (id, owner, leases) in sessions {
            let leases = self.keep_here(leases);
            for leases in leases.chunks(TOGETHER) {
                let message = Message::keep(&owner, self.session_life(), leases);
                let kept = self
                    .redis()
                    .call(&self.domain, &message, Span::MAX, || ())
                    .await;
                let Ok(gone) = kept.and_then(gone) else {
                    continue;
                };
                let gone: Vec<LeaseId> = gone
                    .into_iter()
                    .filter_map(|place| leases.get(place).copied())
                    .collect();
                self.tell_gone(id, gone);
            }
        }
    }

    /// Leases of a session that the store no longer has under its name: they ended by their time
    /// while it could not be reached, were revoked, or adopted elsewhere.
    fn tell_gone(&self, id: SessionId, gone: Vec<LeaseId>) {
        if gone.is_empty() {
            return;
        }
        let mut inner = self.sessions.inner.lock();
        let Inner {
            by_id, of_lease, ..
        } = &mut *inner;
        let Some(session) = by_id.get_mut(&id) else {
            return;
        };
        // Released meanwhile: nobody needs to be told.
        let gone: Vec<LeaseId> = gone
            .into_iter()
            .filter(|lease| of_lease.remove(lease).is_some() && session.leases.remove(lease))
            .collect();
        if gone.is_empty() {
            return;
        }
        let revoked = Revoked {
            leases: gone,
            by: RevokedBy::Store,
            path: Arc::default(),
        };
        if session.revoked.try_send(revoked).is_err() {
            // Too slow to listen, or gone: the stream ends when nobody can tell it anything.
            session.revoked = mpsc::channel(1).0;
        }
    }
}

/// Renews as long as there are sessions.
async fn keep(fleet: Weak<Fleet>, life: Span) {
    loop {
        sleep(Span::from_nanos(life.as_nanos() / RENEWALS).into()).await;
        let Some(fleet) = fleet.upgrade() else { return };
        if fleet.sessions.len() == 0 {
            fleet.sessions.kept.store(false, Ordering::Release);
            // One that was opened just now has started another task, or sees this one end.
            if fleet.sessions.len() == 0 || fleet.sessions.kept.swap(true, Ordering::AcqRel) {
                return;
            }
        }
        fleet.keep_once().await;
    }
}

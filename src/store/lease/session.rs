//! Sessions: leases that end together with a stream.

use std::collections::{BTreeSet, HashMap};

use rand::RngExt;

use crate::{
    model::{
        lease::EndedBy,
        time::{Span, Timestamp},
    },
    store::lease::{Ending, LeaseBook},
};

/// Longest time that leases outlive their stream.
pub const MAX_GRACE: Span = Span::from_secs(30);

/// A session, over all the streams that carried it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(in crate::store) u64);

/// One stream of a session. When a stream was replaced by a newer one, its end means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The session that it carries.
    pub session: SessionId,
    pub(in crate::store) incarnation: u32,
}

/// A session that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The stream that carries it now.
    pub stream: Stream,
    /// With this another stream can take the session over. Nobody can guess it.
    pub token: u128,
}

#[derive(Debug)]
struct Session {
    token: u128,
    grace: Span,
    incarnation: u32,
    /// When its leases end; none while a stream carries it.
    ends: Option<Timestamp>,
    leases: BTreeSet<u64>,
}

/// All sessions of a book.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    by_id: HashMap<SessionId, Session>,
    by_token: HashMap<u128, SessionId>,
    ending: BTreeSet<(Timestamp, SessionId)>,
    opened: u64,
}

impl Sessions {
    pub(super) fn open(&mut self, token: u128, grace: Span) -> Opened {
        self.opened += 1;
        let id = SessionId(self.opened);
        let session = Session {
            token,
            grace: grace.min(MAX_GRACE),
            incarnation: 0,
            ends: None,
            leases: BTreeSet::new(),
        };
        self.by_id.insert(id, session);
        self.by_token.insert(token, id);
        let stream = Stream {
            session: id,
            incarnation: 0,
        };
        Opened { stream, token }
    }

    /// A new stream carries the session on.
    pub(super) fn resume(&mut self, token: u128) -> Option<Opened> {
        let id = *self.by_token.get(&token)?;
        let session = self.by_id.get_mut(&id)?;
        session.incarnation = session.incarnation.wrapping_add(1);
        if let Some(ends) = session.ends.take() {
            self.ending.remove(&(ends, id));
        }
        let stream = Stream {
            session: id,
            incarnation: session.incarnation,
        };
        Some(Opened { stream, token })
    }

    /// A stream was lost: its session ends after its grace, unless resumed.
    pub(super) fn lose(&mut self, stream: Stream, now: Timestamp) {
        let Some(session) = self.by_id.get_mut(&stream.session) else {
            return;
        };
        if session.incarnation == stream.incarnation && session.ends.is_none() {
            let ends = now + session.grace;
            session.ends = Some(ends);
            self.ending.insert((ends, stream.session));
        }
    }

    /// The next session that ends.
    pub(super) fn next_end(&self) -> Option<(Timestamp, SessionId)> {
        self.ending.first().copied()
    }

    /// Whether this stream is the one that carries its session.
    pub(super) fn is_current(&self, stream: Stream) -> bool {
        let session = self.by_id.get(&stream.session);
        session.is_some_and(|session| session.incarnation == stream.incarnation)
    }

    /// Forgets a session; its leases.
    pub(super) fn close(&mut self, id: SessionId) -> BTreeSet<u64> {
        let Some(session) = self.by_id.remove(&id) else {
            return BTreeSet::new();
        };
        self.by_token.remove(&session.token);
        if let Some(ends) = session.ends {
            self.ending.remove(&(ends, id));
        }
        session.leases
    }

    /// Whether the session of a lease has ended by `now`, noticed or not.
    pub(super) fn is_over(&self, session: Option<SessionId>, now: Timestamp) -> bool {
        session.is_some_and(|id| {
            let ends = self.by_id.get(&id).map(|session| session.ends);
            ends.is_none_or(|ends| ends.is_some_and(|ends| ends <= now))
        })
    }

    /// Number of leases of a session; none when it is over.
    pub(super) fn leases(&self, id: SessionId) -> Option<usize> {
        self.by_id.get(&id).map(|session| session.leases.len())
    }

    pub(super) fn add(&mut self, id: SessionId, lease: u64) {
        if let Some(session) = self.by_id.get_mut(&id) {
            session.leases.insert(lease);
        }
    }

    pub(super) fn remove(&mut self, id: SessionId, lease: u64) {
        if let Some(session) = self.by_id.get_mut(&id) {
            session.leases.remove(&lease);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl LeaseBook {
    /// Opens a session. Its leases outlive a lost stream by `grace`.
    pub fn open_session(&mut self, grace: Span, now: Timestamp) -> Opened {
        self.advance(now);
        let token = self.random.random();
        self.sessions.open(token, grace)
    }

    /// A new stream carries on the session of this token; none when it is over.
    pub fn resume_session(&mut self, token: u128, now: Timestamp) -> Option<Opened> {
        self.advance(now);
        self.sessions.resume(token)
    }

    /// A stream was lost: the leases of its session end after its grace, at once without one.
    /// Nothing happens when another stream carries the session by now.
    pub fn lose_session(&mut self, stream: Stream, now: Timestamp) {
        self.advance(now);
        self.sessions.lose(stream, self.now);
        self.advance(now);
    }

    /// The client says goodbye: its leases are released.
    pub fn close_session(&mut self, stream: Stream, now: Timestamp) {
        self.advance(now);
        if self.sessions.is_current(stream) {
            self.end_session(stream.session, EndedBy::Released, self.now);
        }
    }

    pub(super) fn end_session(&mut self, session: SessionId, by: EndedBy, at: Timestamp) {
        for sequence in self.sessions.close(session) {
            self.end(sequence, Ending::By(by), at);
        }
    }
}

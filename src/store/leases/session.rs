//! Streams that carry sessions.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Keeper, Leases};
use crate::{
    model::time::{Clock, Now, Span},
    store::lease::{AskError, Opened, Revoked, SessionId, Stream},
};

/// Revocations that a session may be behind with before it is closed.
const REVOCATIONS: usize = 256;

/// A stream that carries a session. Dropped without [`SessionGuard::goodbye`], the session is lost.
#[derive(Debug)]
pub struct SessionGuard {
    keeper: Keeper,
    clock: Clock,
    stream: Stream,
    said_goodbye: bool,
}

impl Leases {
    /// Opens a session, or takes over the one of this token if it is still there.
    ///
    /// # Errors
    /// As [`Leases::of_domain`].
    pub fn open_session(
        &self,
        domain: &Arc<str>,
        token: Option<u128>,
        grace: Span,
        now: Now,
    ) -> Result<(Opened, SessionGuard, mpsc::Receiver<Revoked>), AskError> {
        let keeper = self.keeper(domain, now)?;
        let (sender, receiver) = mpsc::channel(REVOCATIONS);
        let opened = match &keeper {
            Keeper::Book(book) => book.open_session(token, grace, sender, now),
            Keeper::Fleet(fleet) => fleet.open_session(token, grace, sender),
        };
        let guard = SessionGuard {
            keeper,
            clock: self.clock.clone(),
            stream: opened.stream,
            said_goodbye: false,
        };
        Ok((opened, guard, receiver))
    }
}

impl SessionGuard {
    /// The session, for requests on this stream.
    pub fn id(&self) -> SessionId {
        self.stream.session
    }

    /// Live leases of the session.
    pub fn leases(&self) -> usize {
        match &self.keeper {
            Keeper::Book(book) => {
                let now = self.clock.now();
                book.with(now, |book| book.leases_of(self.stream.session))
            }
            Keeper::Fleet(fleet) => fleet.leases_of(self.stream.session),
        }
    }

    /// Releases all leases of the session at once.
    pub fn goodbye(mut self) {
        self.said_goodbye = true;
        match &self.keeper {
            Keeper::Book(book) => {
                let now = self.clock.now();
                book.close_session(self.stream, now);
            }
            Keeper::Fleet(fleet) => fleet.close_session(self.stream),
        }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        if self.said_goodbye {
            return;
        }
        match &self.keeper {
            Keeper::Book(book) => {
                let now = self.clock.now();
                book.lose_session(self.stream, now);
            }
            Keeper::Fleet(fleet) => fleet.lose_session(self.stream),
        }
    }
}

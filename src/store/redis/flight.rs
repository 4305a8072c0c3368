//! Requests that wait for the same message to come back.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::store::redis::{error::StoreError, reply::Reply};

/// What became of a batch. Any number of requests wait for it.
#[derive(Debug, Default)]
pub(super) struct Flight {
    landed: OnceLock<Result<Reply, StoreError>>,
    news: Notify,
}

impl Flight {
    /// Tells everybody. Only the first word counts.
    pub(super) fn land(&self, result: Result<Reply, StoreError>) {
        if self.landed.set(result).is_ok() {
            self.news.notify_waiters();
        }
    }

    /// Waits until it has landed. May be dropped and called again at any time.
    pub(super) async fn landed(&self) -> &Result<Reply, StoreError> {
        loop {
            let news = self.news.notified();
            if let Some(result) = self.landed.get() {
                return result;
            }
            news.await;
        }
    }
}

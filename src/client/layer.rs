//! A `tower` layer: every call of a service takes a permit first.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use crate::client::{Ask, Client, ClientError};

/// Takes a permit for each call. The permit is taken inside the call and not in `poll_ready`,
/// where every idle connection would hold one.
#[derive(Clone)]
pub struct LimitLayer<F> {
    client: Client,
    ask: Arc<F>,
}

impl<F> LimitLayer<F> {
    /// `ask` says what a request needs; none passes without a permit.
    pub fn new(client: Client, ask: F) -> Self {
        Self {
            client,
            ask: Arc::new(ask),
        }
    }
}

impl<S, F> Layer<S> for LimitLayer<F> {
    type Service = LimitService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        LimitService {
            inner,
            client: self.client.clone(),
            ask: Arc::clone(&self.ask),
        }
    }
}

/// A service whose calls take a permit.
#[derive(Clone)]
pub struct LimitService<S, F> {
    inner: S,
    client: Client,
    ask: Arc<F>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum LimitError<E> {
    /// There was no permit; the service was not called.
    #[error(transparent)]
    Limited(ClientError),
    /// The service itself failed.
    #[error(transparent)]
    Service(E),
}

impl<S, F, R> Service<R> for LimitService<S, F>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: std::error::Error,
    F: Fn(&R) -> Option<Ask> + Send + Sync + 'static,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = LimitError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(LimitError::Service)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // The one that was polled ready is called; a clone takes its place.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (client, ask) = (self.client.clone(), (self.ask)(&request));
        Box::pin(async move {
            let permit = match ask {
                Some(ask) => Some(client.acquire(ask).await.map_err(LimitError::Limited)?),
                None => None,
            };
            let answer = inner.call(request).await.map_err(LimitError::Service);
            match (permit, &answer) {
                (Some(permit), Ok(_)) => permit.succeed(),
                (Some(permit), Err(_)) => permit.fail(),
                (None, _) => {}
            }
            answer
        })
    }
}

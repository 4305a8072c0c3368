//! Ready or not: one state, told over HTTP and over `grpc.health.v1`.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt as _, wrappers::WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_server::Health as HealthService,
};

/// Names that health is asked for: the server, and what the reference service calls itself.
const NAMES: [&str; 2] = ["", "ratelimit"];

/// Whether requests should come here. Clones share one state.
///
/// Started is a latch: once every [`Latch`] is dropped it stays so. The store may come and go,
/// and draining ends it for good. Liveness is not here: a process that answers lives.
#[derive(Clone, Debug)]
pub struct Health {
    state: Arc<watch::Sender<State>>,
}

#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, combined in one place"
)]
struct State {
    started: bool,
    /// At least one domain is loaded.
    rules: bool,
    /// Without rules nobody should come here.
    rules_wanted: bool,
    store: bool,
    draining: bool,
}

impl State {
    fn ready(self) -> bool {
        self.missing().is_empty()
    }

    fn missing(self) -> Vec<&'static str> {
        [
            (!self.started, "starting"),
            (!self.store, "the store is away"),
            (self.rules_wanted && !self.rules, "no rules are loaded"),
            (self.draining, "stopping"),
        ]
        .into_iter()
        .filter_map(|(missing, text)| missing.then_some(text))
        .collect()
    }

    fn serving(self) -> HealthCheckResponse {
        let status = if self.ready() {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        HealthCheckResponse {
            status: status.into(),
        }
    }
}

/// Something that has to be done before the process is ready. Drop it when it is done.
#[derive(Clone, Debug)]
pub struct Latch {
    /// The last clone that goes opens the latch.
    _open: Arc<OpenOnDrop>,
}

#[derive(Debug)]
struct OpenOnDrop(Arc<watch::Sender<State>>);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.started = true);
    }
}

impl Health {
    /// Not ready before the latch and all its clones are dropped. `rules_wanted`: nor while no
    /// domain is loaded (`HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`).
    pub fn new(rules_wanted: bool) -> (Self, Latch) {
        let state = Arc::new(watch::Sender::new(State {
            started: false,
            rules: false,
            rules_wanted,
            store: true,
            draining: false,
        }));
        let latch = Latch {
            _open: Arc::new(OpenOnDrop(Arc::clone(&state))),
        };
        (Self { state }, latch)
    }

    /// Should requests come here?
    pub fn ready(&self) -> bool {
        self.state.borrow().ready()
    }

    /// Why not, in words; empty when ready.
    pub fn missing(&self) -> Vec<&'static str> {
        self.state.borrow().missing()
    }

    /// Rules were loaded, with at least one domain or none.
    pub fn rules(&self, any: bool) {
        self.change(|state| state.rules = any);
    }

    /// The store answers, or it does not.
    pub fn store(&self, up: bool) {
        self.change(|state| state.store = up);
    }

    /// The process is about to stop. There is no way back.
    pub fn draining(&self) {
        self.change(|state| state.draining = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }
}

/// `grpc.health.v1.Health` over [`Health`].
#[derive(Clone, Debug)]
pub(super) struct GrpcHealth {
    pub(super) health: Health,
    /// Ends the watches, which would hold their connections for ever otherwise.
    pub(super) end: CancellationToken,
}

#[async_trait]
impl HealthService for GrpcHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if NAMES.contains(&request.get_ref().service.as_str()) {
            Ok(Response::new(self.health.state.borrow().serving()))
        } else {
            Err(Status::not_found(
                "health is known for \"\" and \"ratelimit\"",
            ))
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = NAMES.contains(&request.get_ref().service.as_str());
        let mut last = None;
        let states = WatchStream::new(self.health.state.subscribe())
            .map(move |state| {
                if known {
                    state.serving()
                } else {
                    HealthCheckResponse {
                        status: ServingStatus::ServiceUnknown.into(),
                    }
                }
            })
            // A change that changes nothing for the watcher is none.
            .filter(move |answer| last.replace(answer.status) != Some(answer.status))
            .map(Ok);
        Ok(Response::new(Box::pin(Until {
            items: Box::pin(states),
            end: Box::pin(self.end.clone().cancelled_owned()),
        })))
    }
}

/// The items of a stream until something happens.
struct Until<S, F> {
    items: Pin<Box<S>>,
    end: Pin<Box<F>>,
}

impl<S: Stream, F: Future<Output = ()>> Stream for Until<S, F> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        // Items first: a watcher still learns that we stop.
        match self.items.as_mut().poll_next(cx) {
            Poll::Pending if self.end.as_mut().poll(cx).is_ready() => Poll::Ready(None),
            next => next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn started_is_a_latch_and_draining_is_the_end() {
        let (health, latch) = Health::new(false);
        let warm = latch.clone();
        drop(latch);
        assert_eq!(health.missing(), ["starting"]);
        drop(warm);
        assert!(health.ready());
        health.store(false);
        assert!(!health.ready());
        health.store(true);
        assert!(health.ready());
        health.draining();
        health.store(true);
        assert_eq!(health.missing(), ["stopping"]);
    }

    #[test]
    fn rules_count_only_when_they_are_wanted() {
        let (indifferent, _) = Health::new(false);
        assert!(indifferent.ready());
        let (health, _) = Health::new(true);
        assert!(!health.ready());
        health.rules(true);
        assert!(health.ready());
        health.rules(false);
        assert!(!health.ready());
    }

    async fn watch(service: &str, health: &Health, end: &CancellationToken) -> Watch {
        let grpc = GrpcHealth {
            health: health.clone(),
            end: end.clone(),
        };
        let request = Request::new(HealthCheckRequest {
            service: service.into(),
        });
        grpc.watch(request).await.unwrap().into_inner()
    }

    type Watch = <GrpcHealth as HealthService>::WatchStream;

    async fn next(watch: &mut Watch) -> Option<ServingStatus> {
        let answer = watch.next().await?.unwrap();
        Some(answer.status())
    }

    #[tokio::test]
    async fn a_watch_tells_each_change_once_and_ends_with_the_drain() {
        let end = CancellationToken::new();
        let (health, latch) = Health::new(false);
        let mut watcher = watch("ratelimit", &health, &end).await;
        assert_eq!(next(&mut watcher).await, Some(ServingStatus::NotServing));
        health.rules(true);
        drop(latch);
        assert_eq!(next(&mut watcher).await, Some(ServingStatus::Serving));
        health.draining();
        end.cancel();
        assert_eq!(next(&mut watcher).await, Some(ServingStatus::NotServing));
        assert_eq!(next(&mut watcher).await, None);
    }

    #[tokio::test]
    async fn an_unknown_name_is_watched_but_not_found() {
        let end = CancellationToken::new();
        let (health, _) = Health::new(false);
        let mut watcher = watch("other", &health, &end).await;
        assert_eq!(
            next(&mut watcher).await,
            Some(ServingStatus::ServiceUnknown)
        );
        let grpc = GrpcHealth { health, end };
        let request = Request::new(HealthCheckRequest {
            service: "other".into(),
        });
        let status = grpc.check(request).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::NotFound);
    }
}

//! What several subjects need: recorded cases, JSON messages, an engine with a clock of its own.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll, Waker},
};

use porteiro::{
    api::{
        bounds::Bounds,
        envoy_rls::{AnswerOptions, RateLimit},
        headers::HeaderNames,
    },
    config,
    engine::{Engine, EngineOptions},
    model::{
        key::KeyHasher,
        time::{ManualClock, Timestamp},
    },
    proto::{
        DESCRIPTORS,
        envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    },
    store::{
        Store,
        memory::{MemoryOptions, MemoryStore},
    },
};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage};
use tonic::Status;

/// A message from its proto3 JSON.
pub(crate) fn message<M: Message + Default>(full_name: &str, json: &serde_json::Value) -> M {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).unwrap());
    let descriptor = POOL.get_message_by_name(full_name).unwrap();
    let dynamic = DynamicMessage::deserialize(descriptor, json).unwrap();
    assert_eq!(dynamic.descriptor().full_name(), full_name);
    dynamic.transcode_to().unwrap()
}

/// Full name of the request message.
pub(crate) const REQUEST: &str = "envoy.service.ratelimit.v3.RateLimitRequest";

/// A service in memory whose time the test moves.
pub(crate) struct Service {
    pub(crate) clock: ManualClock,
    pub(crate) engine: Arc<Engine>,
    pub(crate) rls: RateLimit,
}

impl Service {
    /// Asks at the present instant.
    pub(crate) fn ask(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        now(self.rls.answer(request, self.clock.now(), None))
    }
}

/// Starts the service of a recorded scenario: its files, its environment, the clock at zero.
pub(crate) fn scenario_service(scenario: &serde_json::Value) -> Service {
    let strings = |name: &str| -> BTreeMap<String, String> {
        serde_json::from_value(scenario[name].clone()).unwrap()
    };
    service(&strings("files"), &strings("env"), Timestamp::ZERO)
}

/// Starts a service with rule files and the reference's environment settings.
pub(crate) fn service(
    files: &BTreeMap<String, String>,
    env: &BTreeMap<String, String>,
    start: Timestamp,
) -> Service {
    let store = Store::from(MemoryStore::new(MemoryOptions::default()));
    service_on(store, ManualClock::at(start), files, env)
}

/// Starts such a service with counters elsewhere.
pub(crate) fn service_on(
    store: Store,
    clock: ManualClock,
    files: &BTreeMap<String, String>,
    env: &BTreeMap<String, String>,
) -> Service {
    let on = |name: &str| env.get(name).is_some_and(|value| value == "true");
    let ratio = env
        .get("NEAR_LIMIT_RATIO")
        .map_or(0.8, |ratio| ratio.parse().unwrap());
    let options = EngineOptions {
        near_limit_ratio: ratio,
        shadow_mode: on("SHADOW_MODE"),
        quota_mode: on("QUOTA_MODE"),
        ..EngineOptions::default()
    };
    let engine = Arc::new(Engine::new(
        clock.clock(),
        KeyHasher::random(),
        store,
        options,
    ));
    let load = config::LoadOptions {
        merge_domains: on("MERGE_DOMAIN_CONFIG"),
        ..Default::default()
    };
    let files: Vec<_> = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    engine.install(config::parse(&files, &load).into_rules().unwrap());
    let mut names = HeaderNames::default();
    for (variable, name) in [
        ("LIMIT_LIMIT_HEADER", &mut names.limit),
        ("LIMIT_REMAINING_HEADER", &mut names.remaining),
        ("LIMIT_RESET_HEADER", &mut names.reset),
    ] {
        if let Some(text) = env.get(variable) {
            name.clone_from(text);
        }
    }
    let answer = AnswerOptions {
        headers: on("LIMIT_RESPONSE_HEADERS_ENABLED").then_some(names),
        dynamic_metadata: on("RESPONSE_DYNAMIC_METADATA"),
    };
    let rls = RateLimit::new(Arc::clone(&engine), Bounds::default(), answer);
    Service { clock, engine, rls }
}

/// The output of a future that has nothing to wait for, as all decisions in memory.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a decision in memory waits for something"),
    }
}

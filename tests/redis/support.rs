//! The services of the suite with their counters in Redis, so that its cases run here as well.
//!
//! Time is the service's: the script takes the instant that [`RedisOptions::test_clock`] shows in
//! place of the server's own. Keys expire by the server's clock all the same, so a scenario has to
//! be over before its shortest window would end by it.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc};

use porteiro::{
    api::envoy_rls::RateLimit,
    engine::Engine,
    model::time::{ManualClock, Span, Timestamp},
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    store::{
        Store,
        fallback::{Fallback, SharedStore},
        memory::{MemoryOptions, MemoryStore},
        redis::{RedisOptions, RedisStore},
    },
};
use tokio::runtime::{Builder, Runtime};
use tonic::Status;

use crate::{limits::PATIENT, server::Server, suite};

pub(crate) use crate::suite::{REQUEST, message};

thread_local! {
    /// Of this test. Everything that waits runs while the test waits for it.
    static PLACE: (Server, Runtime) = (
        Server::start(),
        Builder::new_current_thread().enable_all().build().unwrap(),
    );
}

/// A service whose time the test moves.
pub(crate) struct Service {
    pub(crate) clock: ManualClock,
    pub(crate) engine: Arc<Engine>,
    pub(crate) rls: RateLimit,
}

impl Service {
    /// A service that counts in this Redis. Must be called inside a runtime.
    pub(crate) fn at(
        server: &Server,
        files: &BTreeMap<String, String>,
        env: &BTreeMap<String, String>,
        start: Timestamp,
    ) -> Self {
        let clock = ManualClock::at(start);
        let options = RedisOptions {
            deadline: PATIENT,
            // The wall clock of a test jumps, and no message may be void for that.
            silence: Span::from_secs(50 * 365 * 86_400),
            test_clock: Some(clock.clock()),
            remembered_refusals: env
                .get("LOCAL_CACHE_SIZE_IN_BYTES")
                .map_or(0, |bytes| bytes.parse::<usize>().unwrap() / 100),
            ..RedisOptions::parse(&server.url()).unwrap()
        };
        let redis = RedisStore::connect(options, clock.clock());
        let stand_in = MemoryStore::new(MemoryOptions::default());
        let stand_in = Fallback::new(stand_in, NonZeroU32::MIN);
        let store = Store::from(SharedStore::new(redis, stand_in));
        // Each service names its counters by a key of its own: they start empty.
        let suite::Service { clock, engine, rls } = suite::service_on(store, clock, files, env);
        Self { clock, engine, rls }
    }

    /// Asks at the present instant.
    pub(crate) fn ask(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let answer = PLACE.with(|(_, runtime)| {
            runtime.block_on(self.rls.answer(request, self.clock.now(), None))
        });
        let redis = self.engine.store().shared().unwrap().redis();
        let failed = redis.snapshot().errors.into_iter().map(|(_, count)| count);
        assert_eq!(failed.sum::<u64>(), 0, "{:?}", redis.snapshot());
        answer
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
    PLACE.with(|(server, runtime)| {
        let _inside = runtime.enter();
        Service::at(server, files, env, start)
    })
}

//! Limits on work in flight over several replicas on one server.

use std::sync::Arc;

use porteiro::{
    api::{
        bounds::Bounds,
        envoy_rls::{AnswerOptions, RateLimit},
        limiter::Limiter,
    },
    config,
    engine::{Engine, EngineOptions},
    model::{
        key::KeyHasher,
        time::{Clock, ManualClock, Span, Timestamp},
    },
    proto::{
        envoy::{
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor, rate_limit_descriptor::Entry,
            },
            service::ratelimit::v3::RateLimitRequest,
        },
        porteiro::v1::{
            AcquireRequest, AcquireResponse, Holder, Item, LeaseEnd, LeaseRenewal, PeekRequest,
            ReleaseRequest, ReleaseResult, RenewRequest, RenewResult, acquire_response::Decision,
            lease_end::Outcome, limiter_service_server::LimiterService,
            release_result::Status as Released, renew_result::Status as Renewed,
        },
    },
    store::{
        Store,
        fallback::{Fallback, SharedStore},
        memory::{MemoryOptions, MemoryStore},
        redis::{RedisOptions, RedisStore},
    },
};
use tonic::Request;

use crate::{
    limits::{PATIENT, until_health},
    server::Server,
};

pub(crate) const RULES: &str = "
domain: edge
stacking: all_or_nothing
descriptors:
- key: upstream
  concurrency: {limit: 3, lease_ttl: 10s, max_lifetime: 30s, hint_jitter: 0}
- key: tenant
  rate_limit: {unit: day, requests_per_unit: 2}
- key: busy
  value: search
  descriptors:
  - key: lease_id
    concurrency: {limit: 2, lease_ttl: 10s}
- key: busy
  value: anonymous
  concurrency: {limit: 1, lease_ttl: 10s}
- key: wait
  concurrency: {limit: 1, max_wait: 5s}
";

/// One replica.
pub(crate) struct Replica {
    engine: Arc<Engine>,
    limiter: Limiter,
    rls: RateLimit,
}

async fn replica(url: &str, clock: Option<&ManualClock>, rules: &str) -> Replica {
    let options = RedisOptions {
        deadline: PATIENT,
        // A clock that is moved by hand jumps further than an outage lasts.
        silence: Span::from_secs(3_600),
        test_clock: clock.map(ManualClock::clock),
        ..RedisOptions::parse(url).unwrap()
    };
    start(options, rules).await
}

pub(crate) async fn start(options: RedisOptions, rules: &str) -> Replica {
    let mine = Clock::machine();
    let redis = RedisStore::connect(options, mine.clone());
    until_health(&redis, true).await;
    let memory = MemoryStore::new(MemoryOptions::default());
    let replicas = std::num::NonZeroU32::new(3).unwrap();
    let store = SharedStore::new(redis, Fallback::new(memory, replicas));
    let hasher = KeyHasher::new([7; 16]);
    let engine = Engine::new(mine, hasher, Store::from(store), EngineOptions::default());
    let engine = Arc::new(engine);
    let parsed = config::parse(&[("edge.yaml", rules)], &config::LoadOptions::default());
    engine.install(parsed.into_rules().unwrap());
    Replica {
        limiter: Limiter::new(Arc::clone(&engine), Bounds::default()),
        rls: RateLimit::new(
            Arc::clone(&engine),
            Bounds::default(),
            AnswerOptions::default(),
        ),
        engine,
    }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: entries
            .iter()
            .map(|(key, value)| Entry {
                key: (*key).to_owned(),
                value: (*value).to_owned(),
            })
            .collect(),
        ..RateLimitDescriptor::default()
    }
}

pub(crate) fn ask(items: &[(&str, &str)]) -> AcquireRequest {
    let item = |entry: &(&str, &str)| Item {
        descriptor: Some(descriptor(&[*entry])),
        ..Item::default()
    };
    AcquireRequest {
        domain: "edge".to_owned(),
        holder: Some(Holder {
            id: "h".to_owned(),
            instance: String::new(),
        }),
        items: items.iter().map(item).collect(),
        ..AcquireRequest::default()
    }
}

impl Replica {
    async fn try_acquire(&self, request: AcquireRequest) -> AcquireResponse {
        let answer = self.limiter.acquire(Request::new(request)).await;
        answer.unwrap().into_inner()
    }

    pub(crate) async fn acquire(&self, request: AcquireRequest) -> AcquireResponse {
        let answer = self.try_acquire(request).await;
        assert!(!answer.degraded);
        answer
    }

    pub(crate) async fn release(&self, lease: &str) -> ReleaseResult {
        self.release_as(lease, "h", Outcome::Success).await
    }

    async fn release_as(&self, lease: &str, holder: &str, outcome: Outcome) -> ReleaseResult {
        let request = ReleaseRequest {
            holder: Some(Holder {
                id: holder.to_owned(),
                instance: String::new(),
            }),
            leases: vec![LeaseEnd {
                lease_id: lease.to_owned(),
                outcome: outcome.into(),
                ..LeaseEnd::default()
            }],
        };
        let answer = self.limiter.release(Request::new(request)).await;
        answer.unwrap().into_inner().results.remove(0)
    }

    async fn renew(&self, lease: &str, ttl: u64) -> RenewResult {
        let request = RenewRequest {
            holder: Some(Holder {
                id: "h".to_owned(),
                instance: String::new(),
            }),
            leases: vec![LeaseRenewal {
                lease_id: lease.to_owned(),
                ttl: Some(prost_types::Duration {
                    seconds: i64::try_from(ttl).unwrap(),
                    nanos: 0,
                }),
            }],
        };
        let answer = self.limiter.renew(Request::new(request)).await;
        answer.unwrap().into_inner().results.remove(0)
    }

    async fn envoy(&self, entries: &[(&str, &str)], release: bool) -> bool {
        let request = RateLimitRequest {
            domain: "edge".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                is_negative_hits: release,
                hits_addend: Some(1),
                ..descriptor(entries)
            }],
            hits_addend: 0,
        };
        let now = self.engine.clock().now();
        let answer = self.rls.answer(&request, now, None).await.unwrap();
        answer.overall_code == 1
    }
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_800_000_000))
}

#[tokio::test]
async fn a_replica_shows_who_holds_what_another_granted() {
    let server = Server::start();
    let clock = clock();
    let a = replica(&server.url(), Some(&clock), RULES).await;
    let b = replica(&server.url(), Some(&clock), RULES).await;
    for (holder, permits) in [("ann", 1), ("bob", 2)] {
        let mut request = ask(&[("upstream", "x"), ("wait", "y")]);
        request.items.truncate(if holder == "ann" { 2 } else { 1 });
        request.items[0].permits = Some(permits);
        request.holder.as_mut().unwrap().id = holder.to_owned();
        assert_eq!(a.acquire(request).await.decision(), Decision::Granted);
        clock.advance(Span::from_secs(2));
    }
    let peek = async |leases| {
        let request = PeekRequest {
            domain: "edge".to_owned(),
            descriptors: vec![
                descriptor(&[("upstream", "x")]),
                descriptor(&[("tenant", "t")]),
                descriptor(&[("wait", "y")]),
            ],
            leases,
            ..PeekRequest::default()
        };
        b.limiter
            .peek(Request::new(request))
            .await
            .unwrap()
            .into_inner()
    };
    let shown = peek(100).await;
    let leases = |place: usize| {
        let limit = &shown.descriptors[place].limits[0];
        let lease = |lease: &porteiro::proto::porteiro::v1::peeked_limit::Lease| {
            let seconds = |span: &Option<prost_types::Duration>| span.as_ref().unwrap().seconds;
            (
                lease.holder.as_ref().unwrap().id.clone(),
                lease.permits,
                seconds(&lease.age),
                seconds(&lease.expires_in),
            )
        };
        limit.leases.iter().map(lease).collect::<Vec<_>>()
    };
    let (ann, bob) = ("ann".to_owned(), "bob".to_owned());
    assert_eq!(leases(0), [(ann.clone(), 1, 4, 6), (bob.clone(), 2, 2, 8)]);
    assert_eq!(leases(1), []);
    assert_eq!(leases(2), [(ann, 1, 4, 6)]);
    assert_eq!(shown.descriptors[0].limits[0].used, 3);
    // One that expires is not shown, though nobody has noticed it.
    clock.advance(Span::from_secs(6));
    let shown = peek(1).await;
    assert_eq!(shown.descriptors[0].limits[0].leases.len(), 1);
    assert_eq!(shown.descriptors[0].limits[0].used, 2);
}

#[tokio::test]
async fn metrics_tell_how_shared_limits_stand_over_all_replicas() {
    let server = Server::start();
    let a = replica(&server.url(), None, RULES).await;
    let b = replica(&server.url(), None, RULES).await;
    let watch = async |replica: &Replica| {
        let leases = replica.engine.leases();
        let told = || leases.shared_limits().iter().any(|(_, l)| !l.is_empty());
        let until_told = async {
            while !told() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = leases.watch(Span::from_millis(1)) => {}
            () = until_told => {}
        }
        porteiro::telemetry::page::render(&replica.engine.metrics())
    };
    for (replica, key) in [(&a, "x"), (&b, "x"), (&b, "y")] {
        let answer = replica.acquire(ask(&[("upstream", key)])).await;
        assert_eq!(answer.decision(), Decision::Granted);
    }
    let line = |name: &str, value: u64| {
        let labels = "domain=\"edge\",limit=\"edge.upstream\"";
        format!("porteiro_shared_concurrency_{name}{{{labels}}} {value}\n")
    };
    // Each tells of the keys that it asked for, and of all leases of those.
    for (replica, keys, out) in [(&a, 1, 2), (&b, 2, 3)] {
        let page = watch(replica).await;
        for (name, value) in [("limit", 3 * keys), ("in_flight", out), ("leases", out)] {
            let line = line(name, value);
            assert!(page.contains(&line), "{line}{page}");
        }
    }
}

#[tokio::test]
async fn what_one_replica_grants_another_one_counts_renews_and_releases() {
    let server = Server::start();
    let clock = clock();
    let a = replica(&server.url(), Some(&clock), RULES).await;
    let b = replica(&server.url(), Some(&clock), RULES).await;
    let upstream = || ask(&[("upstream", "x")]);
    let mut leases = Vec::new();
    for replica in [&a, &b, &a] {
        let answer = replica.acquire(upstream()).await;
        assert_eq!(answer.decision(), Decision::Granted);
        leases.push(answer.lease_id);
    }
    let refused = b.acquire(upstream()).await;
    assert_eq!(refused.decision(), Decision::Refused);
    assert_eq!((refused.items[0].in_flight, refused.items[0].limit), (3, 3));
    // One of three comes back every third of the mean hold, which is a second before anything is
    // known.
    let hint = refused.retry_after.unwrap();
    assert_eq!((hint.seconds, hint.nanos / 1_000_000), (0, 333));
    // The next one is told the next slot.
    let hint = a.acquire(upstream()).await.retry_after.unwrap();
    assert_eq!((hint.seconds, hint.nanos / 1_000_000), (0, 666));

    clock.advance(Span::from_secs(4));
    let stranger = b.release_as(&leases[0], "somebody", Outcome::Success).await;
    assert_eq!(stranger.status(), Released::NotHolder);
    let renewed = b.renew(&leases[1], 20).await;
    assert_eq!(renewed.status(), Renewed::Renewed);
    assert_eq!(renewed.expires_in.unwrap().seconds, 20);
    let released = b.release(&leases[0]).await;
    assert_eq!(released.status(), Released::Released);
    assert_eq!(released.held.unwrap().seconds, 4);
    assert_eq!(
        a.release(&leases[0]).await.status(),
        Released::AlreadyReleased
    );
    assert_eq!(a.acquire(upstream()).await.decision(), Decision::Granted);

    // To the microsecond: a lease lives in [granted, expiry).
    clock.advance(Span::from_micros(5_999_999));
    assert_eq!(b.acquire(upstream()).await.decision(), Decision::Refused);
    clock.advance(Span::from_micros(1));
    assert_eq!(b.acquire(upstream()).await.decision(), Decision::Granted);
    assert_eq!(a.renew(&leases[2], 5).await.status(), Renewed::Gone);
    clock.advance(Span::from_secs(1));
    let late = b.release(&leases[2]).await;
    assert_eq!(
        (late.status(), late.late_by.unwrap().seconds),
        (Released::Late, 1)
    );
    let capped = a.renew(&leases[1], 1_000).await;
    assert!(capped.capped && capped.expires_in.unwrap().seconds == 19);
    assert_eq!(
        a.release("aaaaaaaaaaaaaaaaaaaaaaaaaa").await.status(),
        Released::Unknown
    );
}

#[tokio::test]
async fn permits_and_rate_units_are_taken_together_or_not_at_all() {
    let server = Server::start();
    let a = replica(&server.url(), None, RULES).await;
    let b = replica(&server.url(), None, RULES).await;
    let both = || ask(&[("upstream", "x"), ("tenant", "t")]);
    assert_eq!(a.acquire(both()).await.decision(), Decision::Granted);
    let second = b.acquire(both()).await;
    assert_eq!(second.decision(), Decision::Granted);
    let refused = a.acquire(both()).await;
    assert_eq!(refused.decision(), Decision::Refused);
    assert_eq!(refused.limiting, [1]);
    assert_eq!(refused.items[0].in_flight, 2, "the refusal took no permit");
    for tenant in ["u", "v"] {
        let request = ask(&[("upstream", "x"), ("tenant", tenant)]);
        let answer = a.acquire(request).await;
        let expected = if tenant == "u" {
            Decision::Granted
        } else {
            Decision::Refused
        };
        assert_eq!(answer.decision(), expected);
    }
    b.release(&second.lease_id).await;
    // The refusal for want of a permit took no unit: both are still there.
    let first = a.acquire(ask(&[("tenant", "v")])).await;
    assert_eq!(first.decision(), Decision::Granted);
    let again = b.acquire(ask(&[("upstream", "x"), ("tenant", "v")])).await;
    assert_eq!(again.decision(), Decision::Granted);
    assert_eq!(
        b.acquire(ask(&[("tenant", "v")])).await.decision(),
        Decision::Refused
    );
}

#[tokio::test]
async fn the_same_request_gets_the_same_lease_everywhere() {
    let server = Server::start();
    let a = replica(&server.url(), None, RULES).await;
    let b = replica(&server.url(), None, RULES).await;
    let request = |permits| {
        let mut request = ask(&[("upstream", "x")]);
        request.request_id = b"r1".to_vec();
        request.items[0].permits = Some(permits);
        request
    };
    let first = a.acquire(request(1)).await;
    let again = b.acquire(request(1)).await;
    assert_eq!(again.decision(), Decision::Replayed);
    assert_eq!(
        (again.lease_id, again.fence),
        (first.lease_id.clone(), first.fence)
    );
    assert_eq!(b.acquire(request(2)).await.decision(), Decision::Conflict);
    assert_eq!(b.acquire(request(9)).await.decision(), Decision::Conflict);
    b.release(&first.lease_id).await;
    let ended = a.acquire(request(1)).await;
    assert_eq!(
        (ended.decision(), ended.lease_id),
        (Decision::Ended, first.lease_id)
    );
    let mut never = ask(&[("upstream", "x")]);
    never.items[0].permits = Some(4);
    assert_eq!(a.acquire(never).await.decision(), Decision::Never);
}

#[tokio::test]
async fn envoys_requests_count_over_the_fleet() {
    let server = Server::start();
    let a = replica(&server.url(), None, RULES).await;
    let b = replica(&server.url(), None, RULES).await;
    let named = |lease: &'static str| [("busy", "search"), ("lease_id", lease)];
    assert!(a.envoy(&named("a"), false).await);
    assert!(b.envoy(&named("b"), false).await);
    assert!(
        b.envoy(&named("b"), false).await,
        "a retry takes no second permit"
    );
    assert!(!a.envoy(&named("c"), false).await);
    // Envoy sends the release of a refused request too.
    assert!(b.envoy(&named("c"), true).await);
    assert!(!a.envoy(&named("d"), false).await);
    assert!(a.envoy(&named("b"), true).await);
    assert!(b.envoy(&named("c"), false).await);
    // A release that overtakes its acquire leaves nothing in flight.
    assert!(a.envoy(&named("e"), true).await);
    assert!(b.envoy(&named("e"), false).await);
    assert!(!b.envoy(&named("f"), false).await);

    let anonymous = [("busy", "anonymous")];
    assert!(a.envoy(&anonymous, false).await);
    assert!(!b.envoy(&anonymous, false).await);
    assert!(b.envoy(&anonymous, true).await);
    assert!(
        !a.envoy(&anonymous, false).await,
        "that release belonged to the refusal"
    );
    assert!(b.envoy(&anonymous, true).await);
    assert!(b.envoy(&anonymous, true).await);
    assert!(a.envoy(&anonymous, false).await);
}

#[tokio::test]
async fn whoever_waits_gets_the_permit_that_comes_back_anywhere() {
    let server = Server::start();
    let a = Arc::new(replica(&server.url(), None, RULES).await);
    let b = replica(&server.url(), None, RULES).await;
    let wait = || ask(&[("wait", "x")]);
    let first = a.acquire(wait()).await;
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let a = Arc::clone(&a);
            tokio::spawn(async move { a.acquire(wait()).await })
        })
        .collect();
    let mut lease = first.lease_id;
    for (index, waits) in waiting.into_iter().enumerate() {
        let releaser = if index == 0 { &b } else { &*a };
        assert_eq!(releaser.release(&lease).await.status(), Released::Released);
        let answer = waits.await.unwrap();
        assert_eq!(answer.decision(), Decision::Granted, "{index}");
        lease = answer.lease_id;
    }
}

#[tokio::test]
async fn no_key_is_without_an_expiry() {
    let server = Server::start();
    let rules = RULES.replacen("unit: day", "unit: minute", 1);
    let a = replica(&server.url(), None, &rules).await;
    for tenant in ["t", "u", "v", "w"] {
        let mut request = ask(&[("upstream", "x"), ("tenant", tenant)]);
        request.request_id = tenant.as_bytes().to_vec();
        let answer = a.acquire(request).await;
        if tenant == "u" {
            a.release(&answer.lease_id).await;
        }
    }
    for lease in ["a", "b", "c"] {
        a.envoy(&[("busy", "search"), ("lease_id", lease)], false)
            .await;
        a.envoy(&[("busy", "anonymous")], false).await;
    }
    a.envoy(&[("busy", "search"), ("lease_id", "z")], true)
        .await;
    let mut line = server.line();
    let keys = line.raw("KEYS *");
    assert!(keys.lines().count() > 15, "{keys}");
    for key in keys.lines() {
        let left = line.raw(&format!("PTTL {key}"));
        let left: i64 = left.trim_start_matches(':').parse().unwrap();
        // Ten minutes in whole milliseconds and one more, as the script's `life` has it.
        assert!(left > 0 && left <= 600_001, "{key}: {left}");
        assert!(
            key.starts_with("{porteiro:edge}:") || key.contains("probe"),
            "{key}"
        );
    }
}

/// Rules whose domains go on in their three ways while the store is away.
const AWAY: &str = "
domain: edge
descriptors:
- key: upstream
  concurrency: {limit: 6, lease_ttl: 60s}
";

async fn impatient(url: &str, rules: &str) -> Replica {
    let options = RedisOptions {
        deadline: Span::from_millis(100),
        silence: Span::from_millis(300),
        ..RedisOptions::parse(url).unwrap()
    };
    start(options, rules).await
}

#[tokio::test]
async fn leases_that_were_granted_while_the_store_was_away_count_when_it_is_back() {
    let mut server = Server::start();
    let a = impatient(&server.url(), AWAY).await;
    let b = impatient(&server.url(), AWAY).await;
    let upstream = || ask(&[("upstream", "x")]);
    server.kill();
    // Each of three replicas has a third of six permits.
    let mut leases = Vec::new();
    for expected in [Decision::Granted, Decision::Granted, Decision::Refused] {
        let answer = a.try_acquire(upstream()).await;
        assert!(answer.degraded);
        assert_eq!(answer.decision(), expected);
        leases.push(answer.lease_id);
    }
    assert_eq!(a.release(&leases[0]).await.status(), Released::Released);
    server.restart();
    // The first answer of the store brings the lease to it, a moment later.
    let counted = async {
        loop {
            let answer = a.try_acquire(upstream()).await;
            if answer.decision() == Decision::Granted {
                // Also one that was still granted without the store.
                a.release(&answer.lease_id).await;
            }
            if !answer.degraded && answer.items[0].in_flight == 2 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let patience = std::time::Duration::from_secs(10);
    tokio::time::timeout(patience, counted).await.unwrap();
    // Another replica can end it.
    assert_eq!(
        b.release_as(&leases[1], "h", Outcome::Success)
            .await
            .status(),
        Released::Released
    );
    assert_eq!(
        a.release(&leases[1]).await.status(),
        Released::AlreadyReleased
    );
}

#[tokio::test]
async fn without_the_store_a_domain_answers_what_it_says() {
    let mut server = Server::start();
    for (how, expected) in [("allow", Decision::Granted), ("deny", Decision::Refused)] {
        let rules = AWAY.replacen(
            "domain: edge",
            &format!("domain: edge\non_store_failure: {how}"),
            1,
        );
        let a = impatient(&server.url(), &rules).await;
        server.kill();
        for _ in 0..10 {
            let answer = a.try_acquire(ask(&[("upstream", "x")])).await;
            assert!(answer.degraded);
            assert_eq!((answer.decision(), &*answer.lease_id), (expected, ""));
        }
        server.restart();
    }
}

#[tokio::test]
async fn a_stalled_store_loses_no_permit() {
    let server = Server::start();
    let rules = AWAY.replacen("domain: edge", "domain: edge\non_store_failure: deny", 1);
    let a = impatient(&server.url(), &rules).await;
    let upstream = || ask(&[("upstream", "x")]);
    server.signal("-STOP");
    for _ in 0..3 {
        let answer = a.try_acquire(upstream()).await;
        assert!(answer.degraded);
        assert_eq!(answer.decision(), Decision::Refused);
    }
    server.signal("-CONT");
    // What the store granted without anybody hearing of it is undone.
    let whole = async {
        loop {
            let answer = a.try_acquire(upstream()).await;
            if !answer.degraded {
                a.release(&answer.lease_id).await;
                if answer.items[0].in_flight == 1 {
                    return;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let patience = std::time::Duration::from_secs(10);
    tokio::time::timeout(patience, whole).await.unwrap();
}

#[tokio::test]
async fn five_replicas_under_load_never_exceed_the_limit() {
    let server = Server::start();
    let rules = AWAY.replacen("limit: 6", "limit: 7, max_wait: 20s, max_waiters: 1000", 1);
    let held = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let replica = Arc::new(replica(&server.url(), None, &rules).await);
        for _ in 0..20 {
            let (replica, held) = (Arc::clone(&replica), Arc::clone(&held));
            tasks.spawn(async move {
                for _ in 0..10 {
                    let answer = replica.acquire(ask(&[("upstream", "x")])).await;
                    assert_eq!(answer.decision(), Decision::Granted);
                    let now = held.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
                    assert!(now <= 7, "{now} in flight");
                    tokio::task::yield_now().await;
                    held.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    replica.release(&answer.lease_id).await;
                }
            });
        }
    }
    let patience = std::time::Duration::from_mins(1);
    let done = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    };
    tokio::time::timeout(patience, done).await.unwrap();
}

/// What the script costs the server; run with `--ignored --nocapture`.
#[tokio::test]
#[ignore = "figures, not a test"]
async fn cost_of_the_script() {
    const LEASES: usize = 2_000;
    let server = Server::start();
    let rules = AWAY.replacen("limit: 6", "limit: 1000000", 1) + TENANT;
    let a = replica(&server.url(), None, &rules).await;
    let spent = || {
        let stats = server.line().raw("INFO commandstats");
        let line = stats.lines().find(|line| line.contains("cmdstat_evalsha:"));
        let line = line.unwrap_or_default().to_owned();
        assert_eq!(server.line().raw("CONFIG RESETSTAT"), "+OK");
        line
    };
    let pair = [("upstream", "x"), ("tenant", "t")];
    let (one, two) = (ask(&pair[..1]), ask(&pair));
    for (what, request) in [("permit", one), ("permit and rate limit", two)] {
        a.acquire(request.clone()).await;
        spent();
        let mut leases = Vec::new();
        for _ in 0..LEASES {
            leases.push(a.acquire(request.clone()).await.lease_id);
        }
        println!("acquire, {what}: {}", spent());
        for lease in &leases {
            a.release(lease).await;
        }
        println!("release, {what}: {}", spent());
        // With few in flight.
        for _ in 0..LEASES {
            let lease = a.acquire(request.clone()).await.lease_id;
            a.release(&lease).await;
        }
        println!("acquire and release by turns, {what}: {}", spent());
    }
}

const TENANT: &str = "- key: tenant
  rate_limit: {unit: hour, requests_per_unit: 1000000}
";

//! What our own fields mean, and what is said when they are wrong.

use porteiro::{
    algorithm::concurrency::law::{Guard, LawSettings},
    config::{self, LoadOptions},
    model::{
        limit::{Algorithm, Anchor, CalendarUnit},
        request::{Entry, Unit},
        time::Span,
    },
    rules::{
        OnStoreFailure, Rules, Stacking,
        answer::{Body, Decimals, GlobalHeader, IetfVersion, PassHeaders, Scope},
        concurrency::{Gone, Marks, RefundOn, Shedding},
        limit::{CostUnit, Limit},
        tree::{RequestLimit, Rule},
    },
};

fn findings(text: &str) -> Vec<String> {
    let loaded = config::parse(&[("f.yaml", text)], &LoadOptions::default());
    loaded.findings.iter().map(ToString::to_string).collect()
}

fn rules(text: &str) -> Rules {
    let loaded = config::parse(&[("f.yaml", text)], &LoadOptions::default());
    loaded.into_rules().unwrap()
}

/// The rule at the end of `key=value` steps of the first domain.
fn rule<'r>(rules: &'r Rules, entries: &[(&'static str, &'static str)]) -> Option<&'r Rule> {
    let entries = entries.iter().map(|(key, value)| Entry { key, value });
    let entries: Vec<Entry<'_>> = entries.collect();
    let found = rules.domains()[0].find(&entries);
    found.map(|found| &**found.rule)
}

const DESIGN: &str = "
domain: edge
stacking: all_or_nothing
on_store_failure: deny
answer:
  headers: [x_ratelimit, ietf, retry_after]
  body: problem_json
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 600}
  - key: user
    limits:
      - {name: burst,   algorithm: token_bucket, rate: 5/s, burst: 40}
      - {name: monthly, algorithm: fixed_window, rate: 50000/month, anchor: calendar, time_zone: Europe/Lisbon}
  - key: client_ip
    mask: {ipv4: 32, ipv6: 64}
    limits: [{rate: 20/10s, algorithm: sliding_window}]
  - key: sms_number
    limits: [{rate: 3/5d, algorithm: sliding_log}]
  - key: upstream
    value: search
    descriptors:
      - key: lease_id
        concurrency: {limit: 30, lease_ttl: 60s}
";

#[test]
fn the_example_of_the_design_means_what_it_says() {
    let rules = rules(DESIGN);
    let domain = rules.domain("edge").unwrap();
    assert_eq!(domain.stacking, Stacking::AllOrNothing);
    assert_eq!(domain.on_store_failure, OnStoreFailure::Deny);
    assert!(domain.answer.headers.x_ratelimit.is_some() && domain.answer.headers.retry_after);
    assert_eq!(
        domain.answer.headers.ietf.unwrap().version,
        IetfVersion::Draft10
    );
    assert_eq!(domain.answer.body, Body::ProblemJson);

    let tenant = &rule(&rules, &[("tenant", "t")]).unwrap().limits[0];
    assert_eq!((tenant.discriminator, tenant.count_denied), (0, true));

    let user = rule(&rules, &[("user", "u")]).unwrap();
    let [burst, monthly] = &user.limits[..] else {
        panic!("two limits")
    };
    assert_eq!(burst.algorithm, Algorithm::TokenBucket);
    assert_eq!((burst.quota.units(), burst.quota.burst()), (5, 40));
    assert_eq!(burst.quota.period(), Span::from_secs(1));
    assert_eq!(burst.name.as_deref(), Some("burst"));
    let Algorithm::FixedWindow(Anchor::Calendar(calendar)) = &monthly.algorithm else {
        panic!("{:?}", monthly.algorithm)
    };
    assert_eq!(calendar.unit, CalendarUnit::Month);
    assert_eq!(&*calendar.zone_name, "Europe/Lisbon");
    assert_ne!(burst.discriminator, monthly.discriminator);

    let address = rule(&rules, &[("client_ip", "::1")]).unwrap();
    assert_eq!(address.limits[0].algorithm, Algorithm::SlidingWindow);
    assert_eq!(address.limits[0].quota.period(), Span::from_secs(10));
    assert!(!address.limits[0].count_denied);
    let shown = address.limits[0].shown;
    assert_eq!(
        (shown.unit, shown.unit_multiplier),
        (Some(Unit::Second), 10)
    );

    let lease = rule(&rules, &[("upstream", "search"), ("lease_id", "x")]).unwrap();
    let concurrency = lease.concurrency.as_ref().unwrap();
    assert_eq!(concurrency.limit, LawSettings::Fixed(30));
    assert_eq!(concurrency.lease_ttl, Span::from_secs(60));
    assert_eq!(&*concurrency.path, "edge.upstream_search.lease_id");
    assert!(lease.limits.is_empty());
}

/// One descriptor with these fields.
fn one(fields: &str) -> String {
    format!("domain: d\ndescriptors:\n- key: k\n  {fields}\n")
}

fn limit(fields: &str) -> Limit {
    let rules = rules(&one(&format!("limits: [{{{fields}}}]")));
    rule(&rules, &[("k", "v")]).unwrap().limits[0].clone()
}

#[test]
fn a_changed_algorithm_starts_afresh_and_changed_numbers_do_not() {
    let first = limit("rate: 5/s, algorithm: token_bucket");
    assert_eq!(
        first.discriminator,
        limit("rate: 7/m, algorithm: token_bucket, burst: 9").discriminator
    );
    assert_ne!(
        first.discriminator,
        limit("rate: 5/s, algorithm: leaky_bucket").discriminator
    );
    assert_ne!(
        first.discriminator,
        limit("rate: 5/s, algorithm: token_bucket, name: n").discriminator
    );
    // An anchor is not an algorithm.
    assert_eq!(
        limit("rate: 5/s").discriminator,
        limit("rate: 5/s, anchor: first_hit").discriminator
    );
    assert_ne!(limit("rate: 5/s").discriminator, 0);
}

#[test]
fn every_field_of_a_limit_is_read() {
    let queue = limit("rate: 10/s, algorithm: leaky_queue, burst: 3, hold: true, cost_unit: bytes");
    assert_eq!(queue.algorithm, Algorithm::LeakyQueue);
    assert_eq!(
        (queue.hold, queue.cost_unit, queue.quota.burst()),
        (true, CostUnit::Bytes, 3)
    );
    let window = limit(
        "unit: hour, requests_per_unit: 9, unit_multiplier: 2, count_denied: false, cost_unit: tokens",
    );
    assert_eq!(window.quota.period(), Span::from_secs(7_200));
    assert_eq!(
        (window.shown.unit, window.shown.unit_multiplier),
        (Some(Unit::Hour), 2)
    );
    assert!(!window.count_denied);
    assert_eq!(window.cost_unit, CostUnit::Named("tokens".into()));
    assert_eq!(
        limit("rate: 5/15m, anchor: last_hit").algorithm,
        Algorithm::FixedWindow(Anchor::LastHit)
    );
    assert_eq!(limit("rate: 5/s, algorithm: leaky_bucket").quota.burst(), 5);
    let multiplied = rules(&one(
        "rate_limit: {unit: minute, requests_per_unit: 5, unit_multiplier: 15}",
    ));
    let multiplied = &rule(&multiplied, &[("k", "")]).unwrap().limits[0];
    assert_eq!(multiplied.quota.period(), Span::from_secs(900));
    assert_eq!(
        (multiplied.shown.unit_multiplier, multiplied.discriminator),
        (15, 0)
    );
    let replacing = rules(&one(
        "limits: [{rate: 5/s, replaces: [{name: a}, {name: b}]}, {rate: 9/m}]",
    ));
    let names: Vec<&str> = rule(&replacing, &[("k", "")])
        .unwrap()
        .replaces
        .iter()
        .map(AsRef::as_ref)
        .collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn the_most_specific_value_wins() {
    let rules = rules(
        "
domain: d
descriptors:
- {key: ip, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: ip, value: 'regex:10\\..*', limits: [{rate: 2/day}]}
- {key: ip, value: 'cidr:10.0.0.0/8', limits: [{rate: 3/day}]}
- {key: ip, value: 'cidr:10.1.0.0/16', limits: [{rate: 4/day}], scope: global}
- {key: ip, value: 10.1.2.3, limits: [{rate: 5/day}]}
- {key: ip, value: 'cidr:2001:db8::/32', limits: [{rate: 6/day}]}
- {key: ip, value: '*.internal', limits: [{rate: 7/day}]}
",
    );
    for (value, want) in [
        ("10.1.2.3", 5),
        ("10.1.2.4", 4),
        ("10.2.0.0", 3),
        ("10.x", 2),
        ("x10.1.1.1x", 1),
        ("2001:db8::1", 6),
        ("::ffff:10.1.9.9", 4),
        ("a.internal", 7),
        ("", 1),
    ] {
        let found = rule(&rules, &[("ip", value)]).unwrap();
        assert_eq!(found.limits[0].quota.units(), want, "{value}");
    }
    assert_eq!(
        rule(&rules, &[("ip", "10.1.2.4")]).unwrap().scope,
        Scope::Global
    );
}

#[test]
fn windows_of_adaptive_limits_are_those_of_their_law() {
    for (fields, window) in [
        ("target_latency: 350ms", Some(2)),
        ("target_latency: 350ms, guard: floor", Some(1)),
        ("law: vegas", Some(1)),
        ("window: 5s, target_latency: 350ms", Some(5)),
        ("window: 0s, target_latency: 350ms", None),
    ] {
        let rules = rules(&one(&format!("concurrency: {{{fields}}}")));
        let found = rule(&rules, &[("k", "")]).unwrap().concurrency.as_ref();
        assert_eq!(
            found.unwrap().window,
            window.map(Span::from_secs),
            "{fields}"
        );
    }
}

#[test]
fn adaptive_limits_take_their_laws() {
    let law = |fields: &str| {
        let rules = rules(&one(&format!("concurrency: {{{fields}}}")));
        rule(&rules, &[("k", "")])
            .unwrap()
            .concurrency
            .as_ref()
            .unwrap()
            .limit
    };
    let LawSettings::Target(target) = law("target_latency: 350ms, min: 2, max: 200, guard: floor")
    else {
        panic!("a target")
    };
    assert_eq!(
        (target.target, target.guard),
        (Span::from_millis(350), Guard::Floor)
    );
    let LawSettings::Target(target) = law("target_latency: 1s, max: 5") else {
        panic!("a target")
    };
    assert_eq!((target.min, target.initial, target.max), (2, 5, 5));
    assert_eq!(target.guard, Guard::Knee);
    let LawSettings::Aimd(aimd) = law("law: aimd, timeout: 2s, backoff: 0.8, min: 1") else {
        panic!("aimd")
    };
    assert_eq!(
        (aimd.timeout, aimd.min, aimd.max),
        (Span::from_secs(2), 1, 200)
    );
    assert!(matches!(law("law: vegas"), LawSettings::Vegas(_)));
    assert!(matches!(
        law("law: gradient2, tolerance: 2"),
        LawSettings::Gradient2(_)
    ));
    assert_eq!(law("limit: 0"), LawSettings::Fixed(0));
}

#[test]
fn every_knob_of_a_concurrency_rule_is_read() {
    let rules = rules(&one(
        "scope: shared
  shadow_mode: true
  concurrency:
    {name: gpu, limit: 4, lease_ttl: 5s, max_lifetime: 1m, max_wait: 50ms, max_waiters: 10,
     queue_target: 1s, lifo: true, heavy_patience: 2s, under_share_wait: 100ms,
     criticality: {priority_wait: 100ms}, on_restart: quarantine, on_shrink: revoke_newest,
     refund_on: [dropped, expired], learn_weights: {max: 6},
     early_release_mark: 6s, ghost_ttl: 7s, connection_gone_after: 3s, connection_grace: 20s,
     prior_hold: 3s, ewma_alpha: 0.5, exposure: false, exposure_tau: 4s, hint_booking: false,
     hint_jitter: 0, hint_when_drained: 9s, window: 0s,
     lease_entry: [id, x-request-id], release_entry: phase=end, tenant_entry: org}",
    ));
    let rule = rule(&rules, &[("k", "")])
        .unwrap()
        .concurrency
        .as_ref()
        .unwrap();
    assert_eq!(rule.name.as_deref(), Some("gpu"));
    assert!(rule.shared && rule.shadow && rule.waiting.newest_first);
    assert!(!rule.hints.booking && !rule.estimates.exposure);
    assert_eq!(rule.max_lifetime, Span::from_secs(60));
    assert_eq!(
        (rule.waiting.max_wait, rule.waiting.max_waiters),
        (Span::from_millis(50), 10)
    );
    assert_eq!(
        rule.shedding,
        Shedding::PriorityWait(Span::from_millis(100))
    );
    let both = RefundOn {
        dropped: true,
        expired: true,
    };
    assert_eq!(rule.refund_on, both);
    assert_eq!(rule.most_weight, Some(6));
    let marks = Marks {
        early_release: Span::from_secs(6),
        ghost: Span::from_secs(7),
    };
    assert_eq!(rule.marks, marks);
    let gone = Gone {
        after: Some(Span::from_secs(3)),
        grace: Span::from_secs(20),
    };
    assert_eq!(rule.gone, gone);
    assert_eq!(rule.window, None);
    assert_eq!(rule.hints.when_drained, Span::from_secs(9));
    assert_eq!(
        *rule.entries.lease,
        ["id", "x-request-id"].map(Box::<str>::from)
    );
    assert_eq!(rule.entries.release, ("phase".into(), "end".into()));
    assert_eq!(
        (&*rule.entries.tenant, &*rule.entries.status),
        ("org", "status")
    );
}

#[test]
fn what_is_kept_back_and_what_a_request_may_bring_is_read() {
    let rules = rules(
        "
domain: d
answer:
  headers: [{x_ratelimit: {reset_after: short, global: alone}}]
  pass_headers: [kind=bot, 'note=a=b']
descriptors:
- {key: a, advertise: false, request_limit: numbers, limits: [{rate: 1/s}]}
- {key: b, advertise: true, request_limit: window, rate_limit: {unit: second}}
",
    );
    let domain = rules.domain("d").unwrap();
    let x_ratelimit = domain.answer.headers.x_ratelimit.unwrap();
    assert_eq!(x_ratelimit.reset_after, Some(Decimals::Short));
    assert_eq!(x_ratelimit.global, GlobalHeader::Alone);
    let pairs = [("kind", "bot"), ("note", "a=b")].map(|(k, v)| (k.into(), v.into()));
    assert_eq!(domain.answer.pass_headers, PassHeaders::With(pairs.into()));
    let rule = |key| {
        let found = domain.find(&[Entry { key, value: "x" }]).unwrap();
        (found.rule.unadvertised, found.rule.request_limit)
    };
    assert_eq!(rule("a"), (true, RequestLimit::Numbers));
    assert_eq!(rule("b"), (false, RequestLimit::Window));
}

#[test]
fn the_contract_with_clients_is_read() {
    let rules = rules(
        "
domain: d
answer:
  headers:
  - reference
  - reason
  - retry_after_ms
  - x_ratelimit: {reset_after: true, bucket: true, scope: true, global: true}
  - ietf: {version: 07, pk: true}
  body: {json: {error: rate_limited, retry: '{retry_after}', nested: [1, {a: '{message}!'}]}}
  messages: {by: lang, default: Slow down, texts: {pt_BR: 'Espere {retry_after_seconds} s', de: Langsam}}
  spread: 0.25
  metadata: true
",
    );
    let answer = &rules.domain("d").unwrap().answer;
    let headers = answer.headers;
    assert!(headers.reference && headers.reason && headers.retry_after_ms && !headers.retry_after);
    let x_ratelimit = headers.x_ratelimit.unwrap();
    assert!(
        x_ratelimit.bucket
            && x_ratelimit.scope
            && x_ratelimit.reset_after == Some(Decimals::Millis)
    );
    assert_eq!(x_ratelimit.global, GlobalHeader::Beside);
    assert_eq!(answer.pass_headers, PassHeaders::Always);
    let ietf = headers.ietf.unwrap();
    assert_eq!(
        (ietf.version, ietf.partition_key),
        (IetfVersion::Draft07, true)
    );
    let Body::Json(template) = &answer.body else {
        panic!("a template")
    };
    assert_eq!(template["nested"][1]["a"], "{message}!");
    assert_eq!(answer.messages.by.as_deref(), Some("lang"));
    assert_eq!(
        answer.messages.texts["pt-br"].as_ref(),
        "Espere {retry_after_seconds} s"
    );
    assert_eq!((answer.spread_permille, answer.metadata), (250, true));
}

#[test]
fn a_rule_has_no_more_limits_than_a_decision_can_look_at() {
    let limits = |count: usize| {
        one(&format!(
            "limits: [{}]",
            vec!["{rate: 5/s}"; count].join(", ")
        ))
    };
    assert_eq!(rules(&limits(64)).rules()[0].limits.len(), 64);
    let findings = findings(&limits(65));
    assert!(
        findings[0].contains("at most 64 limits, here are 65"),
        "{findings:?}"
    );
}

#[test]
fn what_is_wrong_is_said_with_place_and_advice() {
    for (fields, want) in [
        (
            "limits: []",
            "f.yaml:4:11: error: descriptors[0].limits: there is no limit in the list; add one, or remove `limits`",
        ),
        (
            "limits: [{}]",
            "f.yaml:4:12: error: descriptors[0].limits[0]: the rate is missing; write a whole number and a period, such as 5/s, 600/minute, 20/10s, 3/5d, 50000/month",
        ),
        ("limits: [{rate: 5}]", "limits[0].rate: \"5\" is no rate"),
        (
            "limits: [{rate: 5/s, burts: 4}]",
            "limits[0].burts: unknown field \"burts\"; did you mean `burst`?",
        ),
        (
            "limits: [{rate: 5/s, algorithm: token-bucket}]",
            "\"token-bucket\" is not known here; did you mean `token_bucket`?",
        ),
        (
            "limits: [{rate: 5/s, burst: 4}]",
            "limits[0].burst: only token_bucket, leaky_bucket or leaky_queue has this",
        ),
        (
            "limits: [{rate: 5/s, algorithm: token_bucket, burst: 0}]",
            "a burst of 0 lets nothing through",
        ),
        (
            "limits: [{rate: 5/s, algorithm: sliding_log, anchor: clock}]",
            "limits[0].anchor: only fixed_window has this",
        ),
        (
            "limits: [{rate: 5/2d, anchor: calendar}]",
            "a calendar window is exactly one unit long",
        ),
        (
            "limits: [{rate: 5/d, anchor: calendar, time_zone: Mars/Base}]",
            "\"Mars/Base\" is no time zone; write an IANA name such as Europe/Lisbon",
        ),
        (
            "limits: [{rate: 5/d, time_zone: UTC}]",
            "time_zone: only fixed_window with `anchor: calendar` has this",
        ),
        (
            "limits: [{rate: 5/s, hold: true}]",
            "hold: only leaky_queue has this",
        ),
        (
            "limits: [{rate: 5/s, algorithm: sliding_window, slice: {size: auto}}]",
            "limits[0].slice: only fixed_window (but not from the last hit), token_bucket or leaky_bucket has this",
        ),
        (
            "limits: [{rate: 5/s, anchor: last_hit, slice: {}}]",
            "f.yaml:4:49: error: descriptors[0].limits[0].slice: only fixed_window (but not",
        ),
        (
            "limits: [{rate: 5/s, count_denied: true, slice: {}}]",
            "limits[0].slice: what is refused cannot be counted in slices",
        ),
        (
            "limits: [{rate: 5/s, slice: {size: 0}}]",
            "f.yaml:4:38: error: descriptors[0].limits[0].slice.size: ",
        ),
        (
            "limits: [{rate: 5/s, slice: {size: many}}]",
            "`auto` or a whole number from 1 to 1000000",
        ),
        (
            "limits: [{rate: 5/s, slice: {max_staleness: 11s}}]",
            "limits[0].slice.max_staleness: a block is held for 1ms to 10s",
        ),
        (
            "limits: [{rate: 5/s, slice: {max_stalenes: 1s}}]",
            "did you mean `max_staleness`?",
        ),
        (
            "limits: [{rate: 5/s, unit: day}]",
            "both a rate and a unit are given",
        ),
        (
            "limits: [{rate: 5/s, unit_multiplier: 2}]",
            "the rate says it already",
        ),
        (
            "limits: [{unit: year, requests_per_unit: 1, unit_multiplier: 1000}]",
            "longer than 584 years",
        ),
        (
            "limits: [{rate: 5/s, name: a}, {rate: 5/m, name: a}]",
            "the name is taken by another limit of this rule",
        ),
        (
            "limits: [{rate: 1/year, algorithm: token_bucket, burst: 1000}]",
            "filling the burst at this rate takes longer than",
        ),
        (
            "limits: [{rate: 5/s, name: \"a\\tb\"}]",
            "has a control character",
        ),
        ("limits: {rate: 5/s}", "limits: a mapping is not a list"),
        (
            "rate_limit: {unit: day}\n  limits: [{rate: 5/s}]",
            "a rule has either `rate_limit` or `limits`",
        ),
        (
            "rate_limit: {unlimited: true}\n  limits: [{rate: 5/s}]",
            "a rule has either `rate_limit` or `limits`",
        ),
        (
            "rate_limit: {unit: day, unit_multiplier: 0}",
            "0 units make no period",
        ),
        (
            "value: 'cidr:10.0.0.0/33'\n  limits: [{rate: 5/s}]",
            "value: \"10.0.0.0/33\" is no network",
        ),
        (
            "value: 'cidr:10.0.0.1/8'\n  limits: [{rate: 5/s}]",
            "10.0.0.1/8 has bits behind the prefix; the network is 10.0.0.0/8",
        ),
        (
            "value: 'regex:(a'\n  limits: [{rate: 5/s}]",
            "is no regular expression: unclosed group",
        ),
        (
            "value: 'regex:a)|(b'\n  limits: [{rate: 5/s}]",
            "is no regular expression: unopened group",
        ),
        (
            "value: 'regex:(a{1000}){1000}'\n  limits: [{rate: 5/s}]",
            "takes more than",
        ),
        (
            "value: v\n  mask: {ipv4: 8}\n  limits: [{rate: 5/s}]",
            "mask: every request here has one counter anyway",
        ),
        (
            "mask: {ipv4: 33}\n  limits: [{rate: 5/s}]",
            "mask.ipv4: 33 is no prefix length; write a number from 0 to 32",
        ),
        (
            "mask: {}\n  limits: [{rate: 5/s}]",
            "no prefix length is given",
        ),
        (
            "scope: everyone",
            "\"everyone\" is not known here; write user or global or shared",
        ),
        ("scope: shared", "scope: there is no limit here"),
        ("stacking: independent", "unknown field \"stacking\""),
        ("concurrency: {}", "nothing says how many permits there are"),
        (
            "concurrency: {limit: 5, lease_ttl: 60}",
            "concurrency.lease_ttl: \"60\" has no unit; write a number with a unit, such as 500ms, 10s, 15m, 1h30m, 5d",
        ),
        (
            "concurrency: {limit: 5, target_latency: 1s}",
            "target_latency: the law `fixed` has no such field",
        ),
        (
            "concurrency: {law: aimd, guard: knee}",
            "guard: the law `aimd` has no such field",
        ),
        (
            "concurrency: {target_latency: 1s, min: 9, max: 5}",
            "min 9, initial 5 and max 5 are not in order",
        ),
        (
            "concurrency: {limit: 5, lease_ttl: 1h}",
            "`max_lifetime` is shorter than `lease_ttl`",
        ),
        (
            "concurrency: {limit: 5, learn_weights: {max: 1}}",
            "`learn_weights` has no `max` that means something",
        ),
        (
            "concurrency: {limit: 5, lease_ttl: 0s}",
            "a lease of no time holds nothing",
        ),
        (
            "concurrency: {limit: 5, criticality: [1, 0.5]}",
            "there are four classes",
        ),
        (
            "concurrency: {limit: 5, criticality: [1, 0.5, 0.7, 0.1]}",
            "a less critical class has more",
        ),
        (
            "concurrency: {limit: 5, release_entry: done}",
            "\"done\" is no key and value; write them with `=` between, such as op=release",
        ),
        ("advertise: false", "advertise: there is no limit here"),
        (
            "request_limit: numbers",
            "request_limit: there is no limit here",
        ),
        (
            "limits: [{rate: 1/s}, {rate: 9/m}]\n  request_limit: numbers",
            "request_limit: numbers of a request can stand for those of one limit only",
        ),
        (
            "limits: [{rate: 1/s}]\n  request_limit: any",
            "request_limit: \"any\" is not known here",
        ),
        (
            "concurrency: {limit: 5, hint_jitter: 2}",
            "\"2\" is not a number from 0 to 1",
        ),
    ] {
        let found = findings(&one(fields));
        assert!(
            found
                .iter()
                .any(|finding| finding.contains(want) && finding.contains("error")),
            "{fields}: {found:#?}"
        );
    }
}

#[test]
fn a_wrong_contract_is_said_too() {
    for (answer, want) in [
        (
            "{headers: [xratelimit]}",
            "f.yaml:2:20: error: answer.headers[0]: \"xratelimit\" is not known here; did you mean `x_ratelimit`?",
        ),
        ("{headers: x_ratelimit}", "is not a list"),
        (
            "{headers: [{ietf: {version: 6}}]}",
            "answer.headers[0].ietf.version: \"6\" is not known here",
        ),
        (
            "{body: html}",
            "answer.body: \"html\" is not known here; write none or problem_json",
        ),
        (
            "{messages: {texts: {de: x}}}",
            "answer.messages: nothing tells the language",
        ),
        ("{messages: {by: l, texts: {'': x}}}", "is no language tag"),
        (
            "{messages: {default: \"a\\r\\nSet-Cookie: x\"}}",
            "has a control character",
        ),
        (
            "{pass_headers: maybe}",
            "f.yaml:2:24: error: answer.pass_headers: \"maybe\" is not known here",
        ),
        (
            "{pass_headers: [bot]}",
            "answer.pass_headers[0]: \"bot\" is no key and value",
        ),
        (
            "{headers: [{x_ratelimit: {global: only}}]}",
            "answer.headers[0].x_ratelimit.global: \"only\" is not known here",
        ),
        (
            "{headers: [{x_ratelimit: {reset_after: 3}}]}",
            "answer.headers[0].x_ratelimit.reset_after: \"3\" is not known here",
        ),
        ("{spread: 30}", "\"30\" is not a number from 0 to 1"),
        (
            "{header: [ietf]}",
            "answer.header: unknown field \"header\"; did you mean `headers`?",
        ),
        (
            "{body: {json: {m: '{massage}'}}}",
            "warning: answer.body.json: \"massage\" is no placeholder",
        ),
    ] {
        let found = findings(&format!("domain: d\nanswer: {answer}\n"));
        assert!(
            found.iter().any(|finding| finding.contains(want)),
            "{answer}: {found:#?}"
        );
    }
}

#[test]
fn a_warning_does_not_refuse() {
    for (text, want) in [
        (
            "domain: d\nvalue: x\n",
            "f.yaml:2:1: warning: value: \"value\" means nothing here and is ignored; move it to where it belongs",
        ),
        (
            "domain: c\ndomain: d\n",
            "f.yaml:2:1: warning: \"domain\" is given twice; the later one counts; remove the other",
        ),
        (
            "domain: d\n---\nfoo\n",
            "f.yaml:2:1: warning: only the first document of a file is read",
        ),
        (
            "domain: d\ndescriptors:\n- {key: k, limits: [{rate: 10001/d, algorithm: sliding_log}]}\n",
            "warning: descriptors[0].limits[0]: a log remembers 10000 admissions",
        ),
    ] {
        let found = findings(text);
        assert!(
            found.iter().any(|finding| finding.contains(want)),
            "{text}: {found:#?}"
        );
        assert!(rules(text).domain("d").is_some());
    }
}

#[test]
fn everything_of_all_files_is_said_at_once() {
    let files = [
        (
            "a.yaml",
            "domain: a\nfoo: 1\ndescriptors:\n- value: x\n- {key: k, rate_limit: {unit: dya}}\n",
        ),
        ("b.yaml", "domain: [\n"),
        ("c.yaml", "domain: c\ndescriptors: 5\n"),
    ];
    let loaded = config::parse(&files, &LoadOptions::default());
    let places: Vec<String> = loaded
        .findings
        .iter()
        .map(|finding| format!("{}:{}", finding.file, finding.at.line))
        .collect();
    assert_eq!(
        places,
        ["a.yaml:2", "a.yaml:4", "a.yaml:5", "b.yaml:2", "c.yaml:2"]
    );
    assert_eq!(loaded.errors(), 5);
}

#[test]
fn settings_of_a_domain_come_from_one_of_its_files() {
    let options = LoadOptions {
        merge_domains: true,
        ..LoadOptions::default()
    };
    let a = "domain: d\nstacking: all_or_nothing\n";
    let merged = config::parse(&[("a.yaml", a), ("b.yaml", "domain: d\n")], &options);
    let merged = merged.into_rules().unwrap();
    assert_eq!(merged.domain("d").unwrap().stacking, Stacking::AllOrNothing);
    let twice = config::parse(&[("a.yaml", a), ("b.yaml", a)], &options);
    let finding = twice.findings[0].to_string();
    assert!(
        finding.contains("b.yaml:2:11: error: stacking: a.yaml says it already"),
        "{finding}"
    );
}

#[test]
fn huge_and_hostile_files_end() {
    let deep = format!("domain: {}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(findings(&deep)[0].contains("recursion limit exceeded"));
    let deep = (0..300).fold("domain: d\n".to_owned(), |text, level| {
        text + &format!("{}a:\n", " ".repeat(level))
    });
    assert!(findings(&deep)[0].contains("nested deeper than 200 levels"));
    let nested = (0..95).fold("domain: d\ndescriptors: ".to_owned(), |text, _| {
        text + "[{key: k, rate_limit: {unit: day}, descriptors: "
    });
    let nested = format!("{nested}[]{}", "}]".repeat(95));
    assert_eq!(rules(&nested).rules().len(), 95);
    let laughs = (1..40).fold("domain: d\na0: &a0 {key: x}\n".to_owned(), |text, level| {
        text + &format!("a{level}: &a{level} [*a{0}, *a{0}, *a{0}]\n", level - 1)
    });
    assert!(findings(&laughs)[0].contains("too many values come from aliases"));
    let many: String = (0..20_000).fold("domain: d\ndescriptors:\n".to_owned(), |text, number| {
        text + &format!("- {{key: k{number}, rate_limit: {{unit: day}}}}\n- {{value: x}}\n")
    });
    assert_eq!(findings(&many).len(), 20_000);
}

#[test]
fn equal_paths_of_different_rules_are_told_apart() {
    let rules = rules(
        "
domain: d
descriptors:
- {key: a, descriptors: [{key: b, rate_limit: {unit: day}}]}
- {key: a.b, rate_limit: {unit: day}}
",
    );
    let paths: Vec<&str> = rules
        .rules()
        .iter()
        .map(|rule| rule.path.as_str())
        .collect();
    assert_eq!(paths, ["d.a.b", "d.a.b#2"]);
}

#[test]
fn a_spread_domain_is_told_what_it_costs_and_what_cannot_be_with_it() {
    let rest = "descriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n";
    let told = findings(&format!("domain: d\nspread: true\n{rest}"));
    assert_eq!(told.len(), 1);
    let costs = "f.yaml:2:9: warning: spread: in a cluster, a request with several limits is \
                 decided slot by slot";
    assert!(told[0].starts_with(costs), "{told:?}");
    assert!(rules(&format!("domain: d\nspread: true\n{rest}")).domains()[0].spread);
    assert_eq!(
        findings(&format!("domain: d\nspread: false\n{rest}")),
        [""; 0]
    );
    let together = format!("domain: d\nspread: true\nstacking: all_or_nothing\n{rest}");
    let in_flight = "domain: d\nspread: true\ndescriptors:\n- {key: k, concurrency: {limit: 1}}\n";
    let word = format!("domain: d\nspread: slots\n{rest}");
    for (text, want) in [
        (
            &*together,
            "f.yaml:2:9: error: spread: limits in several slots of a cluster cannot",
        ),
        (
            in_flight,
            "f.yaml:2:9: error: spread: limits on work in flight, such as d.k, are kept",
        ),
        (&word, "f.yaml:2:9: error: spread: "),
    ] {
        let told = findings(text);
        assert!(told.len() == 1 && told[0].starts_with(want), "{told:?}");
    }
}

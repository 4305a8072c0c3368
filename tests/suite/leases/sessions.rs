//! Leases that end with a stream.

use porteiro::{
    model::{
        lease::{Decision, EndedBy, ReleaseStatus, RenewStatus},
        time::Span,
    },
    rules::concurrency::OnShrink,
    store::lease::{Answer, Ask, AskError, Bounds, Event, Item, Opened, RevokedBy},
};

use crate::leases::{Bench, KEY, holder, limit, millis, rule};

impl Bench {
    fn in_session(&mut self, opened: &Opened, permits: u64) -> Answer {
        let items = [Item::many(KEY, &limit(10), permits)];
        self.ask(&Ask {
            session: Some(opened.stream.session),
            ..Ask::new(&items)
        })
    }
}

#[test]
fn a_lost_stream_ends_its_leases_at_once() {
    let mut bench = Bench::new();
    let opened = bench.book.open_session(Span::ZERO, bench.now);
    let ids = [
        bench.in_session(&opened, 2).leases[0],
        bench.in_session(&opened, 3).leases[0],
    ];
    bench.book.lose_session(opened.stream, bench.now);
    assert_eq!(bench.in_flight(KEY), 0);
    for id in ids {
        assert_eq!(bench.release(id), ReleaseStatus::SessionLost);
        let renewed = bench.book.renew(&id, None, None, bench.now);
        assert_eq!(renewed, RenewStatus::Gone(EndedBy::SessionLost));
    }
    assert_eq!(bench.book.resume_session(opened.token, bench.now), None);
    bench.audit();
}

#[test]
fn the_stream_keeps_leases_alive_up_to_their_lifetime() {
    let mut bench = Bench::new();
    let opened = bench.book.open_session(Span::ZERO, bench.now);
    let answer = bench.in_session(&opened, 1);
    assert_eq!(answer.expires_in, Span::from_secs(30));
    bench.pass(599_999);
    assert_eq!(bench.in_flight(KEY), 1);
    bench.pass(1);
    assert_eq!(bench.in_flight(KEY), 0);
    assert!(matches!(
        bench.release(answer.leases[0]),
        ReleaseStatus::Late { .. }
    ));
}

#[test]
fn leases_outlive_a_lost_stream_by_the_grace() {
    let mut bench = Bench::new();
    let opened = bench.book.open_session(millis(500), bench.now);
    bench.in_session(&opened, 1);
    bench.book.lose_session(opened.stream, bench.now);
    assert_eq!(bench.book.next_due(), Some(bench.now + millis(500)));
    bench.pass(499);
    assert_eq!(bench.in_flight(KEY), 1);
    let resumed = bench.book.resume_session(opened.token, bench.now).unwrap();
    assert_eq!(resumed.stream.session, opened.stream.session);
    bench.pass(10_000);
    assert_eq!(bench.in_flight(KEY), 1);
    // The old stream is noticed dead after all: that means nothing any more.
    bench.book.lose_session(opened.stream, bench.now);
    bench.pass(10_000);
    assert_eq!(bench.in_flight(KEY), 1);
    bench.book.lose_session(resumed.stream, bench.now);
    bench.pass(500);
    assert_eq!(bench.in_flight(KEY), 0);
    assert_eq!(bench.book.sizes(), (0, 0, 0));
    bench.audit();
}

#[test]
fn goodbye_releases() {
    let mut bench = Bench::new();
    let opened = bench.book.open_session(Span::from_secs(30), bench.now);
    let id = bench.in_session(&opened, 1).leases[0];
    bench.pass(100);
    let before = bench.book.finished_hold(KEY);
    bench.book.close_session(opened.stream, bench.now);
    assert_eq!(bench.in_flight(KEY), 0);
    assert_eq!(bench.release(id), ReleaseStatus::AlreadyReleased);
    // Outcome unknown: nothing is learned.
    assert_eq!(bench.book.finished_hold(KEY), before);
}

#[test]
fn a_session_has_a_bound_of_its_own() {
    let mut bench = Bench::with(Bounds {
        leases_per_session: 2,
        ..Bounds::default()
    });
    let opened = bench.book.open_session(Span::ZERO, bench.now);
    bench.in_session(&opened, 1);
    bench.in_session(&opened, 1);
    let items = [Item::one(KEY, &limit(10))];
    let ask = Ask {
        session: Some(opened.stream.session),
        ..Ask::new(&items)
    };
    assert_eq!(
        bench.book.acquire(&ask, bench.now),
        Err(AskError::SessionFull)
    );
}

#[test]
fn a_lease_moves_to_another_session() {
    let mut bench = Bench::new();
    let old = bench.book.open_session(Span::ZERO, bench.now);
    let new = bench.book.open_session(Span::ZERO, bench.now);
    let rule = limit(10);
    let items = [Item::many(KEY, &rule, 4)];
    let ask = Ask {
        holder: holder("h"),
        session: Some(old.stream.session),
        ..Ask::new(&items)
    };
    let id = bench.ask(&ask).leases[0];
    let adopt = [id];
    let moved = Ask {
        session: Some(new.stream.session),
        adopt: &adopt,
        ..ask.clone()
    };
    // Not for somebody else, and not for other permits.
    let stolen = bench.ask(&Ask {
        holder: holder("g"),
        ..moved.clone()
    });
    assert_eq!(stolen.decision, Decision::Granted);
    bench.release(stolen.leases[0]);
    let answer = bench.ask(&moved);
    assert_eq!(
        (answer.decision, answer.leases[0]),
        (Decision::Replayed, id)
    );
    bench.book.lose_session(old.stream, bench.now);
    assert_eq!(bench.in_flight(KEY), 4);
    bench.book.lose_session(new.stream, bench.now);
    assert_eq!(bench.in_flight(KEY), 0);
    bench.audit();
}

#[test]
fn a_lowered_limit_revokes_the_newest_of_sessions_if_the_rule_wants() {
    let mut bench = Bench::new();
    let revoking = |permits| rule(permits, |rule| rule.on_shrink = OnShrink::RevokeNewest);
    let opened = bench.book.open_session(Span::ZERO, bench.now);
    let ask = |bench: &mut Bench, permits, session| {
        let items = [Item::many(KEY, &revoking(6), permits)];
        bench
            .ask(&Ask {
                session,
                ..Ask::new(&items)
            })
            .leases[0]
    };
    let session = Some(opened.stream.session);
    let first = ask(&mut bench, 2, session);
    let second = ask(&mut bench, 2, session);
    let unary = ask(&mut bench, 2, None);
    bench.book.set_rule(KEY, &revoking(3), bench.now);
    let events = bench.turn();
    let [
        Event::Revoked {
            session: told,
            revoked,
        },
    ] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    // Nobody could tell the unary holder: it keeps its permits.
    assert_eq!(
        (*told, revoked.leases.as_slice()),
        (opened.stream.session, [second, first].as_slice())
    );
    assert_eq!(revoked.by, RevokedBy::Limit);
    assert_eq!(bench.in_flight(KEY), 2);
    assert_eq!(bench.release(first), ReleaseStatus::Revoked);
    assert!(matches!(
        bench.release(unary),
        ReleaseStatus::Released { .. }
    ));
    bench.audit();
}

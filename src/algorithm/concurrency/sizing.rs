//! Rules of thumb that follow from Little's law: limits, queues, and the price of a lease that is
//! never released.

use crate::algorithm::concurrency::real::{real, whole};

/// A limit for `rate` requests per second that hold for `hold` seconds: the mean in flight plus
/// three standard deviations, ⌈L + 3·√L⌉.
pub fn limit_for(rate: f64, hold: f64) -> u64 {
    let mean = rate * hold;
    whole((mean + 3.0 * mean.sqrt()).ceil())
}

/// Waiters that a queue may hold so that nobody stays longer than `target` seconds, wait and work
/// together: ⌊C·(T/S − 1)⌋.
pub fn queue_for(limit: u64, hold: f64, target: f64) -> u64 {
    if hold <= 0.0 {
        return u64::MAX;
    }
    // A hair above, so that 10·(0.1/0.02 − 1) is 40 and not 39.
    whole(real(limit) * (target / hold - 1.0) + 1e-9)
}

/// Mean hold when a share `leaked` of the leases is never released and ends by its TTL.
pub fn effective_hold(hold: f64, leaked: f64, ttl: f64) -> f64 {
    (1.0 - leaked) * hold + leaked * ttl
}

/// Longest TTL at which leaked leases cost at most the share `loss` of the throughput:
/// ε/(1 − ε)·S/p. None when nothing leaks.
pub fn ttl_for(hold: f64, leaked: f64, loss: f64) -> Option<f64> {
    (leaked > 0.0 && loss < 1.0).then(|| loss / (1.0 - loss) * hold / leaked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::concurrency::cases::{case, close, number, rows};

    #[test]
    fn queues_and_ttls_as_in_the_cases() {
        let little = case("little");
        for row in rows(&little, "queue_for_target") {
            let limit = whole(number(row, "C"));
            assert_eq!(
                queue_for(limit, number(row, "S"), number(row, "target")),
                whole(number(row, "queue")),
                "{row}"
            );
        }
        for row in rows(&little, "ttl_rule") {
            let ttl = ttl_for(number(row, "S"), number(row, "p"), number(row, "eps")).unwrap();
            close(ttl, number(row, "ttl_max"), 5e-4);
        }
        assert_eq!(ttl_for(0.25, 0.0, 0.05), None);
    }

    #[test]
    fn a_leak_lowers_the_ceiling() {
        let little = case("little");
        for row in rows(&little, "leak") {
            let (leaked, ttl) = (number(row, "p"), number(row, "ttl"));
            // The rows are computed with S + p·TTL; ours has the exact (1 − p)·S.
            let exact = effective_hold(0.25, leaked, ttl);
            close(exact + leaked * 0.25, number(row, "eff_hold"), 1e-9);
            let ceiling = 30.0 / (exact + leaked * 0.25);
            close(ceiling, number(row, "ceiling_rps"), 0.01);
            close(
                100.0 * (1.0 - ceiling / 120.0),
                number(row, "lost_pct"),
                0.06,
            );
        }
    }
}

//! The result of a replay, for people.

use std::fmt;

use crate::{
    chart::table::{Align, Table},
    replay::{
        Changes, Replay,
        callers::Callers,
        side::{Moment, Side, Tally},
    },
    rules::{limit::Limit, tree::Rule},
    trace::time,
};

/// What is shown of a replay.
#[derive(Debug)]
pub struct Report<'a> {
    /// What happened.
    pub replay: &'a Replay,
    /// What to call each set of rules.
    pub names: &'a [String],
    /// How many of the most refused callers are listed.
    pub top: usize,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trace(f)?;
        for (side, name) in self.replay.sides().iter().zip(self.names) {
            writeln!(f, "\nrules: {name}")?;
            self.side(f, side)?;
        }
        if let Some(changes) = self.replay.changes() {
            self.changes(f, changes)?;
        }
        Ok(())
    }
}

impl Report<'_> {
    fn trace(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.replay.seen();
        write!(f, "trace: {} lines, {} requests", seen.lines, seen.asked)?;
        if let Some((first, last)) = seen.between {
            write!(f, ", {} to {}", time::show(first), time::show(last))?;
        }
        writeln!(f)?;
        if seen.not_asked > 0 {
            let count = seen.not_asked;
            writeln!(
                f,
                "  lines without the fields for any descriptor (nobody would ask): {count}"
            )?;
        }
        if seen.late > 0 {
            let late = seen.late;
            writeln!(
                f,
                "  requests too far out of order (decided late, see --order): {late}"
            )?;
        }
        if seen.bad > 0 {
            writeln!(f, "  lines that are no request: {}", seen.bad)?;
            for (line, error) in &seen.bad_lines {
                writeln!(f, "    line {line}: {error}")?;
            }
            let rest = seen.bad.saturating_sub(count(seen.bad_lines.len()));
            if rest > 0 {
                writeln!(f, "    and {rest} more")?;
            }
        }
        Ok(())
    }

    fn side(&self, f: &mut fmt::Formatter<'_>, side: &Side) -> fmt::Result {
        let totals = side.totals();
        let share = percent(totals.refused, totals.asked);
        writeln!(
            f,
            "  {} of {} requests refused ({share})",
            totals.refused, totals.asked
        )?;
        for (count, what) in [
            (
                totals.unknown_domain,
                "requests for a domain that is not there (they pass)",
            ),
            (
                totals.untouched,
                "requests that no limit applies to (they pass)",
            ),
            (
                side.pressed_out(),
                "counters that gave way to others (refusals may be missing)",
            ),
            (
                count(side.concurrency_rules()),
                "rules for work in flight (a trace says nothing of that; left out)",
            ),
        ] {
            if count > 0 {
                writeln!(f, "  {what}: {count}")?;
            }
        }
        let mut asked: Vec<_> = side
            .tallies()
            .filter(|(_, tally)| tally.asked > 0)
            .collect();
        // Most refusals first; of equals in the order of the files.
        asked.sort_by_key(|(_, tally)| std::cmp::Reverse((tally.refused, tally.excused)));
        if !asked.is_empty() {
            let mut table = limits_table();
            for (limit, tally) in asked {
                table.row(limit_row(limit, tally));
            }
            write!(f, "\n{table}")?;
        }
        callers(f, "most refused", side.callers(), self.top)
    }

    fn changes(&self, f: &mut fmt::Formatter<'_>, changes: &Changes) -> fmt::Result {
        let ((refused, by_new), (admitted, by_old)) = (&changes.refused, &changes.admitted);
        writeln!(
            f,
            "\ndifference: {refused} newly refused, {admitted} newly admitted"
        )?;
        callers(f, "newly refused", by_new, self.top)?;
        callers(f, "newly admitted", by_old, self.top)
    }
}

fn limits_table() -> Table {
    Table::new(&[
        ("rule", Align::Left),
        ("limit", Align::Left),
        ("asked", Align::Right),
        ("refused", Align::Right),
        ("share", Align::Right),
        ("over, passed", Align::Right),
        ("first refusal", Align::Left),
        ("last refusal", Align::Left),
    ])
}

fn limit_row(limit: Option<(&Rule, &Limit)>, tally: &Tally) -> [String; 8] {
    let (rule, limit) = match limit {
        None => ("(limits of requests)".to_owned(), String::new()),
        Some((rule, limit)) => {
            let name = limit
                .name
                .as_deref()
                .map_or(String::new(), |name| format!("{name}: "));
            (rule.path.clone(), format!("{name}{limit}"))
        }
    };
    let moment = |moment: Option<Moment>| {
        moment.map_or(String::new(), |Moment { time, line }| {
            format!("{} line {line}", time::show(time))
        })
    };
    [
        rule,
        limit,
        tally.asked.to_string(),
        tally.refused.to_string(),
        percent(tally.refused, tally.asked),
        tally.excused.to_string(),
        moment(tally.first),
        moment(tally.last),
    ]
}

fn callers(f: &mut fmt::Formatter<'_>, what: &str, callers: &Callers, top: usize) -> fmt::Result {
    let mut table = Table::new(&[
        (what, Align::Left),
        ("by", Align::Left),
        ("refusals", Align::Right),
        ("first", Align::Left),
        ("last", Align::Left),
    ]);
    for (limit, descriptor, refused) in callers.top(top) {
        table.row([
            descriptor.to_owned(),
            limit.to_owned(),
            refused.count.to_string(),
            time::show(refused.first),
            time::show(refused.last),
        ]);
    }
    if table.is_empty() {
        return Ok(());
    }
    write!(f, "\n{table}")?;
    if callers.error() > 0 {
        let error = callers.error();
        writeln!(
            f,
            "(too many callers to count each: up to {error} more refusals apiece)"
        )?;
    }
    Ok(())
}

fn count(of: usize) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.2}%", part as f64 * 100.0 / whole as f64)
}

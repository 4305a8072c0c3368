//! An explanation as lines that people read.

use std::fmt::{self, Write as _};

use crate::{
    api::text::without_controls,
    proto::porteiro::v1::{
        ExplainRequest, ExplainResponse, ExplainedDescriptor, PeekResponse, PeekedDescriptor,
        PeekedLimit, Reason, explained_descriptor::Charge,
    },
};

/// The whole explanation.
pub(super) fn of(request: &ExplainRequest, response: &ExplainResponse) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, request, response);
    text
}

fn write(out: &mut String, request: &ExplainRequest, response: &ExplainResponse) -> fmt::Result {
    write!(out, "domain {}", without_controls(&request.domain))?;
    if response.domain_known {
        write!(out, ", stacking {}", response.stacking)?;
    } else {
        write!(out, " has no rules")?;
    }
    writeln!(out, ", rules of revision {}", response.revision)?;
    let Some(before) = &response.before else {
        return Ok(());
    };
    verdict(out, before)?;
    let places = before.descriptors.iter().zip(&response.descriptors);
    for (index, (peeked, explained)) in places.enumerate() {
        write!(out, "\ndescriptor {}:", index + 1)?;
        let asked = request.descriptors.get(index);
        for entry in asked.into_iter().flat_map(|asked| &asked.entries) {
            let (key, value) = (without_controls(&entry.key), without_controls(&entry.value));
            write!(out, " {key}={value}")?;
        }
        writeln!(out)?;
        let binding = before.binding.as_ref();
        let binding = binding
            .filter(|place| usize::try_from(place.descriptor).is_ok_and(|place| place == index))
            .and_then(|place| usize::try_from(place.limit).ok());
        descriptor(out, peeked, explained, binding)?;
    }
    Ok(())
}

fn verdict(out: &mut String, before: &PeekResponse) -> fmt::Result {
    if before.would_pass {
        return writeln!(out, "passes");
    }
    write!(out, "is refused")?;
    why(out, before.reason(), before.retry_after)?;
    writeln!(out)
}

fn why(out: &mut String, reason: Reason, retry: Option<prost_types::Duration>) -> fmt::Result {
    let reason = reason.as_str_name().trim_start_matches("REASON_");
    write!(out, " ({})", reason.to_ascii_lowercase())?;
    match retry {
        Some(retry) => write!(out, ", passes again in {}", seconds(retry)),
        None => write!(out, ", waiting does not help"),
    }
}

fn descriptor(
    out: &mut String,
    peeked: &PeekedDescriptor,
    explained: &ExplainedDescriptor,
    binding: Option<usize>,
) -> fmt::Result {
    for level in &explained.levels {
        let (key, value) = (without_controls(&level.key), without_controls(&level.value));
        writeln!(out, "  {key}={value}")?;
        for tried in &level.tried {
            let sign = if tried.chosen { '>' } else { '-' };
            write!(out, "  {sign} {}", tried.key)?;
            if !tried.value.is_empty() {
                write!(out, ": {}", tried.value)?;
            }
            writeln!(out, "  ({})", tried.why)?;
        }
        match level.left_out {
            0 if level.tried.is_empty() => writeln!(out, "  there are no rules at this level")?,
            0 => {}
            more => writeln!(out, "  … and {more} more")?,
        }
    }
    write!(out, "  end: {}", explained.end)?;
    if !explained.rule.is_empty() {
        let ExplainedDescriptor {
            rule, file, line, ..
        } = explained;
        write!(out, ": {rule} ({file}:{line})")?;
    }
    for (on, what) in [
        (peeked.shadow, ", which only looks on"),
        (peeked.quota, ", which is quota"),
    ] {
        if on {
            out.push_str(what);
        }
    }
    writeln!(out)?;
    for (index, (shown, charge)) in peeked.limits.iter().zip(&explained.charges).enumerate() {
        limit(out, shown, charge)?;
        if binding == Some(index) {
            write!(out, "  <- binding")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn limit(out: &mut String, shown: &PeekedLimit, charge: &Charge) -> fmt::Result {
    write!(out, "  limit ")?;
    if !shown.name.is_empty() {
        write!(out, "{} ", shown.name)?;
    }
    write!(out, "{} {}", shown.algorithm, shown.limit)?;
    if let Some(window) = shown.window {
        write!(out, " in {}", seconds(window))?;
    }
    let charged = if charge.charged {
        "charged"
    } else {
        "not charged"
    };
    write!(
        out,
        ": cost {}, {charged}; before {} used, {} left; after {} used, {} left",
        charge.cost, shown.used, shown.remaining, charge.used_after, charge.remaining_after
    )?;
    if !shown.would_pass {
        write!(out, "; refuses")?;
        why(out, shown.reason(), shown.retry_after)?;
    }
    Ok(())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "for people; nanoseconds are in the message"
)]
fn seconds(span: prost_types::Duration) -> String {
    format!("{} s", span.seconds as f64 + f64::from(span.nanos) / 1e9)
}

//! Leases as bytes: durations, never dates.

use std::{collections::HashSet, io::Read, sync::Arc};

use super::{
    SavedBook, list, put_length,
    wire::{Input, Put, Unreadable},
};
use crate::{
    model::{key::CounterKey, lease::LeaseId},
    store::lease::{MAX_PERMITS, Naming, Saved, SavedItem, SavedLease},
};

const ISSUED: u8 = 0;
const NAMED: u8 = 1;
const ANONYMOUS: u8 = 2;

/// No life of a server grants that often.
const MOST_GRANTS: u64 = 1 << 62;

pub(super) fn put_book(out: &mut Vec<u8>, book: &SavedBook) {
    out.put_bytes(book.domain.as_bytes());
    out.put_u16(book.number);
    out.put_u64(book.saved.sequence);
    out.put_u64(book.saved.fence);
    put_length(out, book.saved.leases.len());
    for lease in &book.saved.leases {
        put_lease(out, lease);
    }
    put_length(out, book.saved.holds.len());
    for (key, path, hold) in &book.saved.holds {
        out.put_u128(key.bits());
        out.put_bytes(path.as_bytes());
        out.put_u64(hold.to_bits());
    }
}

pub(super) fn book<R: Read>(input: &mut Input<R>) -> Result<SavedBook, Unreadable> {
    let domain = Arc::from(input.text()?);
    let number = input.u16()?;
    let saved = Saved {
        sequence: running(input)?,
        fence: running(input)?,
        leases: list(input, lease)?,
        holds: list(input, hold)?,
    };
    // Oldest first, each once, none that was not granted yet: what a book relies on.
    let known = saved.leases.iter().map(|lease| lease.id.sequence);
    let are_granted = known.clone().all(|sequence| sequence <= saved.sequence);
    if !are_granted || !known.is_sorted_by(|one, next| one < next) {
        return Err(Unreadable::Meaningless("the order of leases"));
    }
    Ok(SavedBook {
        domain,
        number,
        saved,
    })
}

/// A number that grows by one with each grant. None gets so far that it could overflow.
pub(super) fn running<R: Read>(input: &mut Input<R>) -> Result<u64, Unreadable> {
    match input.u64()? {
        number if number <= MOST_GRANTS => Ok(number),
        _ => Err(Unreadable::Meaningless("the number of grants")),
    }
}

fn put_lease(out: &mut Vec<u8>, lease: &SavedLease) {
    out.put_u32(lease.id.boot);
    out.put_u16(lease.id.book);
    out.put_u64(lease.id.sequence);
    out.put_u64(lease.id.secret);
    out.put_bytes(lease.holder.as_bytes());
    out.put_bytes(lease.instance.as_bytes());
    out.put_u8(lease.request.is_some().into());
    if let Some(request) = &lease.request {
        out.put_bytes(request);
    }
    match lease.naming {
        Naming::Issued => out.put_u8(ISSUED),
        Naming::Named(name) => {
            out.put_u8(NAMED);
            out.put_u128(name.bits());
        }
        Naming::Anonymous => out.put_u8(ANONYMOUS),
    }
    out.put_span(lease.age);
    out.put_span(lease.remaining);
    out.put_span(lease.lifetime);
    put_length(out, lease.items.len());
    for item in &lease.items {
        out.put_u128(item.key.bits());
        out.put_bytes(item.path.as_bytes());
        out.put_u64(item.permits);
        out.put_u64(item.asked);
    }
}

fn lease<R: Read>(input: &mut Input<R>) -> Result<SavedLease, Unreadable> {
    let lease = SavedLease {
        id: LeaseId {
            boot: input.u32()?,
            book: input.u16()?,
            sequence: input.u64()?,
            secret: input.u64()?,
        },
        holder: Arc::from(input.text()?),
        instance: Arc::from(input.text()?),
        request: match input.u8()? {
            0 => None,
            _ => Some(input.bytes()?),
        },
        naming: match input.u8()? {
            ISSUED => Naming::Issued,
            NAMED => Naming::Named(key(input)?),
            ANONYMOUS => Naming::Anonymous,
            _ => return Err(Unreadable::Meaningless("the name of a lease")),
        },
        age: input.span()?,
        remaining: input.span()?,
        lifetime: input.span()?,
        items: list(input, item)?,
    };
    let keys: HashSet<CounterKey> = lease.items.iter().map(|item| item.key).collect();
    if keys.len() < lease.items.len() {
        return Err(Unreadable::Meaningless("a key of a lease"));
    }
    Ok(lease)
}

fn item<R: Read>(input: &mut Input<R>) -> Result<SavedItem, Unreadable> {
    Ok(SavedItem {
        key: key(input)?,
        path: Arc::from(input.text()?),
        permits: permits(input)?,
        asked: permits(input)?,
    })
}

fn permits<R: Read>(input: &mut Input<R>) -> Result<u64, Unreadable> {
    match input.u64()? {
        permits if permits <= MAX_PERMITS => Ok(permits),
        _ => Err(Unreadable::Meaningless("the permits of a lease")),
    }
}

fn hold<R: Read>(input: &mut Input<R>) -> Result<(CounterKey, Arc<str>, f64), Unreadable> {
    let (key, path) = (key(input)?, Arc::from(input.text()?));
    let seconds = f64::from_bits(input.u64()?);
    if !seconds.is_finite() || seconds < 0.0 {
        return Err(Unreadable::Meaningless("the time that a permit is held"));
    }
    Ok((key, path, seconds))
}

fn key<R: Read>(input: &mut Input<R>) -> Result<CounterKey, Unreadable> {
    Ok(CounterKey::from_bits(input.u128()?))
}

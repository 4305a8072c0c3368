//! Leases as bytes: durations, never dates.

use std::{io::Read, sync::Arc};

use super::{
    SavedBook, list, put_length,
    wire::{Input, Put, Unreadable},
};
use crate::{
    model::{key::CounterKey, lease::LeaseId},
    store::lease::{Naming, Saved, SavedItem, SavedLease},
};

const ISSUED: u8 = 0;
const NAMED: u8 = 1;
const ANONYMOUS: u8 = 2;

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
    Ok(SavedBook {
        domain: Arc::from(input.text()?),
        number: input.u16()?,
        saved: Saved {
            sequence: input.u64()?,
            fence: input.u64()?,
            leases: list(input, lease)?,
            holds: list(input, hold)?,
        },
    })
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
    Ok(SavedLease {
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
    })
}

fn item<R: Read>(input: &mut Input<R>) -> Result<SavedItem, Unreadable> {
    Ok(SavedItem {
        key: key(input)?,
        path: Arc::from(input.text()?),
        permits: input.u64()?,
        asked: input.u64()?,
    })
}

fn hold<R: Read>(input: &mut Input<R>) -> Result<(CounterKey, Arc<str>, f64), Unreadable> {
    Ok((
        key(input)?,
        Arc::from(input.text()?),
        f64::from_bits(input.u64()?),
    ))
}

fn key<R: Read>(input: &mut Input<R>) -> Result<CounterKey, Unreadable> {
    Ok(CounterKey::from_bits(input.u128()?))
}

//! Leases by their ids, whichever domains they are of: in a book here, or in the shared store.

use std::{collections::HashMap, sync::Arc};

use super::{Book, Leases};
use crate::{
    model::{
        lease::{LeaseId, ReleaseStatus, RenewStatus},
        time::{Now, Span},
    },
    store::{
        fleet::{Fleet, NO_BOOT},
        lease::Release,
        redis::StoreError,
    },
};

/// A lease that no book here keeps.
enum Elsewhere {
    /// The shared store may.
    Fleet,
    /// Of another life of the server.
    OtherBoot,
    /// Made up.
    Unknown,
}

/// Places of leases in a request, by the number of the domains that may know them.
type Away = HashMap<u16, Vec<usize>>;

impl Leases {
    /// Ends leases.
    ///
    /// # Errors
    /// The shared store is away: its leases end as soon as it is back.
    pub async fn release(
        &self,
        releases: &[Release<'_>],
        now: Now,
    ) -> Result<Vec<ReleaseStatus>, StoreError> {
        let mut away = Away::new();
        let statuses = releases.iter().enumerate().map(|(place, release)| {
            match self.of_lease(&release.id) {
                Ok(book) => return book.release(release, now),
                Err(Elsewhere::OtherBoot) => return ReleaseStatus::OtherBoot,
                Err(Elsewhere::Unknown) => {}
                Err(Elsewhere::Fleet) => away.entry(release.id.book).or_default().push(place),
            }
            ReleaseStatus::Unknown
        });
        let mut statuses: Vec<_> = statuses.collect();
        for (number, mut places) in away {
            for fleet in self.fleets_of(number) {
                let some: Vec<_> = places.iter().map(|place| releases[*place]).collect();
                let told = fleet.release(&some, now).await?;
                note(told, ReleaseStatus::Unknown, &mut statuses, &mut places);
                if places.is_empty() {
                    break;
                }
            }
        }
        Ok(statuses)
    }

    /// Prolongs leases: id, holder and TTL of each.
    ///
    /// # Errors
    /// The shared store is away.
    pub async fn renew(
        &self,
        renewed: &[(LeaseId, Option<&str>, Option<Span>)],
        now: Now,
    ) -> Result<Vec<RenewStatus>, StoreError> {
        let mut away = Away::new();
        let statuses = renewed
            .iter()
            .enumerate()
            .map(|(place, (id, holder, ttl))| {
                match self.of_lease(id) {
                    Ok(book) => return book.renew(id, *holder, *ttl, now),
                    Err(Elsewhere::OtherBoot) => return RenewStatus::OtherBoot,
                    Err(Elsewhere::Unknown) => {}
                    Err(Elsewhere::Fleet) => away.entry(id.book).or_default().push(place),
                }
                RenewStatus::Unknown
            });
        let mut statuses: Vec<_> = statuses.collect();
        for (number, mut places) in away {
            for fleet in self.fleets_of(number) {
                let some: Vec<_> = places.iter().map(|place| renewed[*place]).collect();
                let told = fleet.renew(&some, now).await?;
                note(told, RenewStatus::Unknown, &mut statuses, &mut places);
                if places.is_empty() {
                    break;
                }
            }
        }
        Ok(statuses)
    }

    /// Domains of this number.
    fn fleets_of(&self, number: u16) -> Vec<Arc<Fleet>> {
        let fleets = self.fleets_by_number.get(&number);
        fleets.map(|fleets| fleets.clone()).unwrap_or_default()
    }

    fn of_lease(&self, id: &LeaseId) -> Result<Arc<Book>, Elsewhere> {
        if self.shared.is_some() && id.boot == NO_BOOT {
            return Err(Elsewhere::Fleet);
        }
        let is_other = id.boot != self.boot;
        if is_other && !self.earlier.is_there() {
            return Err(Elsewhere::OtherBoot);
        }
        let elsewhere = if is_other {
            Elsewhere::OtherBoot
        } else {
            Elsewhere::Unknown
        };
        // A book that follows one of another boot has kept its number.
        self.by_number
            .get(&id.book)
            .map(|book| Arc::clone(&book))
            .ok_or(elsewhere)
    }
}

/// Takes over what one domain says of the leases at `places`; those that it does not know stay, for
/// another domain of its number may.
fn note<S: Copy + PartialEq>(
    told: Vec<S>,
    unknown: S,
    statuses: &mut [S],
    places: &mut Vec<usize>,
) {
    for (place, status) in places.iter().zip(told) {
        statuses[*place] = status;
    }
    places.retain(|place| statuses[*place] == unknown);
}

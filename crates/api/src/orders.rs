//! Orders in progress or waiting, by drive: hanging orders of a drive delay only orders of that drive.

use sluice_spec::error::{ApiError, Kind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of orders of a drive that are executed at a time, each on a thread of its own. Further
/// orders wait without a thread. An order may hang for as long as a remote machine or a file system does.
const OF_A_DRIVE_AT_ONCE: usize = 8;

/// Maximum number of orders of a drive, waiting or in progress; further orders are refused.
const OF_A_DRIVE_MAX: usize = 512;

/// Maximum number of orders of all drives, waiting or in progress.
pub(super) const ORDERS_MAX: usize = 1024 + RESERVED;

/// Places for drives that have fewer than [`OF_A_DRIVE_AT_ONCE`] orders.
const RESERVED: usize = 128;

/// Drive name of orders that are for no drive, such as a reload: no drive has this name.
pub const NO_DRIVE: &str = "";

/// Orders of one drive.
#[derive(Debug)]
struct OfDrive {
    count: usize,
    at_work: Arc<Semaphore>,
}

/// Orders of all drives.
#[derive(Debug)]
struct Orders {
    count: usize,
    drives: BTreeMap<String, OfDrive>,
}

static ORDERS: Mutex<Orders> = Mutex::new(Orders { count: 0, drives: BTreeMap::new() });

fn lock(orders: &Mutex<Orders>) -> MutexGuard<'_, Orders> {
    // A panic ends the process, so the lock is never poisoned.
    orders.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of an order, from its arrival to its end.
#[derive(Debug)]
pub(super) struct Place {
    orders: &'static Mutex<Orders>,
    drive: String,
    at_work: Arc<Semaphore>,
}

impl Place {
    /// Takes a place for an order for a drive.
    pub(super) fn take(drive: impl Into<String>) -> Result<Self, ApiError> {
        Self::take_in(&ORDERS, drive.into())
    }

    fn take_in(orders: &'static Mutex<Orders>, drive: String) -> Result<Self, ApiError> {
        let mut all = lock(orders);
        let of_drive = all.drives.get(&drive).map_or(0, |it| it.count);
        if of_drive >= OF_A_DRIVE_MAX && drive != NO_DRIVE {
            return Err(too_many(&format!("{of_drive} orders for drive `{drive}`")));
        }
        let reserved = if of_drive < OF_A_DRIVE_AT_ONCE { 0 } else { RESERVED };
        if all.count >= ORDERS_MAX - reserved || of_drive >= OF_A_DRIVE_MAX {
            return Err(too_many(&format!("{} orders", all.count)));
        }
        all.count += 1;
        let new = || OfDrive { count: 0, at_work: Arc::new(Semaphore::new(OF_A_DRIVE_AT_ONCE)) };
        let entry = all.drives.entry(drive.clone()).or_insert_with(new);
        entry.count += 1;
        let at_work = Arc::clone(&entry.at_work);
        drop(all);
        Ok(Self { orders, drive, at_work })
    }

    pub(super) fn drive(&self) -> &str {
        &self.drive
    }

    /// Waits until the order is one of its drive's that are executed. Never returns `None`, because no
    /// semaphore is closed.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.at_work).acquire_owned().await.ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = lock(self.orders);
        all.count -= 1;
        if let Some(entry) = all.drives.get_mut(&self.drive) {
            entry.count -= 1;
            if entry.count == 0 {
                all.drives.remove(&self.drive);
            }
        }
    }
}

fn too_many(which: &str) -> ApiError {
    ApiError::new(Kind::Unavailable, format!("{which} are under way or waiting already")).hint(
        "some of them may wait for a machine or a file system that does not answer: the daemon's log may say which",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders() -> &'static Mutex<Orders> {
        Box::leak(Box::new(Mutex::new(Orders { count: 0, drives: BTreeMap::new() })))
    }

    fn fill(orders: &'static Mutex<Orders>, drive: &str, count: usize) -> Vec<Place> {
        (0..count).map(|_| Place::take_in(orders, drive.to_owned()).expect("there is room")).collect()
    }

    #[test]
    fn drives_with_many_orders_leave_places_to_others() {
        let orders = orders();
        let hanging = fill(orders, "far", OF_A_DRIVE_MAX);
        let refused = Place::take_in(orders, "far".to_owned()).expect_err("it has its half");
        assert_eq!(refused.error, "512 orders for drive `far` are under way or waiting already");
        let more = fill(orders, "stuck", OF_A_DRIVE_MAX);
        let few = fill(orders, "other", OF_A_DRIVE_AT_ONCE);
        let refused = Place::take_in(orders, "other".to_owned()).expect_err("it has few no more");
        assert_eq!(refused.error, "1032 orders are under way or waiting already");
        let others: Vec<Place> = (few.len()..RESERVED)
            .map(|number| Place::take_in(orders, format!("other-{number}")).expect("it is reserved"))
            .collect();
        let refused = Place::take_in(orders, "last".to_owned()).expect_err("there is no room");
        assert_eq!(refused.error, "1152 orders are under way or waiting already");
        drop((few, others));
        drop(hanging);
        drop(Place::take_in(orders, "far".to_owned()).expect("there is room again"));
        drop(more);
        assert!(lock(orders).drives.is_empty() && lock(orders).count == 0);
    }

    #[test]
    fn a_drive_whose_orders_hang_holds_up_no_order_of_another() {
        let orders = orders();
        let is_at_work = |place: &Place| Arc::clone(&place.at_work).try_acquire_owned().ok();
        let far = fill(orders, "far", OF_A_DRIVE_AT_ONCE + 1);
        let mut hanging: Vec<_> = far.iter().map(is_at_work).collect();
        assert!(hanging.pop().is_some_and(|last| last.is_none()), "one more than it has at once");
        assert!(hanging.iter().all(Option::is_some));
        let other = Place::take_in(orders, "other".to_owned()).expect("there is room");
        assert!(is_at_work(&other).is_some());
        drop(hanging.pop());
        assert!(is_at_work(&far[0]).is_some(), "the first that ends lets another go on");
    }
}

//! Reservation notifications of a controller for its host (Base 8.19, 5.16.1, log page 80h).

use crate::state::limits::NAMESPACES_MAX;
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_nvme::log::ReservationNotification;
use std::collections::VecDeque;
use zerocopy::FromZeros;

/// Unread notifications of a controller. A further one replaces the oldest; the count of log pages shows the
/// host that it missed some.
pub(crate) const NOTIFICATIONS_MAX: usize = 64;

/// Reservation Notification Log Page Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    RegistrationPreempted = 1,
    ReservationReleased = 2,
    ReservationPreempted = 3,
}

impl Notification {
    fn of(kind: u8) -> Option<Self> {
        [Self::RegistrationPreempted, Self::ReservationReleased, Self::ReservationPreempted]
            .into_iter()
            .find(|it| *it as u8 == kind)
    }
}

/// Bits of the Reservation Notification Mask (feature 82h): the bit of each type is that of its number.
pub(crate) const MASKS: u32 = 0b1110;

#[derive(Clone, Debug)]
pub(crate) struct Notifications {
    /// Unread notifications, the oldest first, each with its log page count, NSID and type. The count starts
    /// at one.
    unread: VecDeque<(u64, u32, Notification)>,
    count: u64,
    /// Masks by NSID less one.
    masks: [u8; NAMESPACES_MAX],
}

impl Notifications {
    pub(crate) fn new() -> Self {
        Self { unread: VecDeque::new(), count: 0, masks: [0; NAMESPACES_MAX] }
    }

    /// Adds a notification. Returns false if the host has masked it.
    pub(crate) fn add(&mut self, nsid: u32, notification: Notification) -> bool {
        if u32::from(self.mask(nsid)) >> notification as u32 & 1 != 0 {
            return false;
        }
        if self.unread.len() == NOTIFICATIONS_MAX {
            self.unread.pop_front();
        }
        self.count += 1;
        self.unread.push_back((self.count, nsid, notification));
        true
    }

    /// Returns the log page; an empty one if everything was read.
    pub(crate) fn page(&self) -> ReservationNotification {
        match self.unread.front() {
            Some(&(count, nsid, notification)) => {
                let further = self.unread.len() as u8 - 1;
                ReservationNotification::new(count, notification as u8, further, nsid)
            }
            None => ReservationNotification::new_zeroed(),
        }
    }

    /// Removes the notification that the host has read. Returns whether there is another.
    pub(crate) fn was_read(&mut self) -> bool {
        self.unread.pop_front();
        !self.unread.is_empty()
    }

    /// Drops all of a deleted namespace, since its NSID may be used again.
    pub(crate) fn forget(&mut self, nsid: u32) {
        self.unread.retain(|(_, of, _)| *of != nsid);
        self.set_mask(nsid, 0);
    }

    pub(crate) fn mask(&self, nsid: u32) -> u8 {
        self.masks.get(nsid.wrapping_sub(1) as usize).copied().unwrap_or(0)
    }

    pub(crate) fn set_mask(&mut self, nsid: u32, mask: u32) {
        if let Some(of) = self.masks.get_mut(nsid.wrapping_sub(1) as usize) {
            *of = (mask & MASKS) as u8;
        }
    }
}

/// Notifications in a record.
impl Notifications {
    pub(crate) fn put(&self, part: &mut Writer) {
        part.put(self.count);
        part.list(&self.unread, |part, (count, nsid, notification)| {
            part.put(*count);
            part.put(*nsid);
            part.put(*notification as u8);
        });
        part.list(self.masks, Writer::put);
    }

    pub(crate) fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let mut notifications = Self::new();
        notifications.count = part.get()?;
        let unread = part.list(NOTIFICATIONS_MAX, |part| {
            let (count, nsid) = (part.get()?, part.get()?);
            let notification = Notification::of(part.get()?).ok_or(RecordError::Invalid("notification"))?;
            Ok((count, nsid, notification))
        })?;
        notifications.unread = unread.into();
        let masks = part.list(NAMESPACES_MAX, Reader::get)?;
        notifications.masks.iter_mut().zip(masks).for_each(|(own, mask)| *own = mask);
        Ok(notifications)
    }
}

const _: () = assert!(NOTIFICATIONS_MAX <= u8::MAX as usize);

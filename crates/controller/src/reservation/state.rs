//! The registrants and the reservation of one namespace.

use super::{HostId, KnownAs};

/// What a reservation lets others do (Base 8.19.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationType {
    WriteExclusive = 1,
    ExclusiveAccess = 2,
    WriteExclusiveRegistrantsOnly = 3,
    ExclusiveAccessRegistrantsOnly = 4,
    WriteExclusiveAllRegistrants = 5,
    ExclusiveAccessAllRegistrants = 6,
}

impl ReservationType {
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// The type that RTYPE names.
    pub fn of(rtype: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| *it as u8 == rtype)
    }

    /// Every registrant holds the reservation.
    pub(crate) fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// One host has what all others lack, be they registered or not.
    pub(crate) fn is_exclusive_to_holder(self) -> bool {
        matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Others may not even read.
    pub(crate) fn excludes_readers(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess
                | Self::ExclusiveAccessRegistrantsOnly
                | Self::ExclusiveAccessAllRegistrants
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registrant {
    pub(crate) host: HostId,
    /// Who registered.
    pub(crate) name: KnownAs,
    pub(crate) key: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) kind: ReservationType,
    /// Who acquired it. It says nothing where all registrants hold it.
    pub(crate) by: HostId,
}

/// Who is registered with a namespace, and how it is reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    /// In the order they came.
    pub(super) registrants: Vec<Registrant>,
    pub(super) reservation: Option<Reservation>,
    /// GEN: counts what changed the registrants, or may have, since the subsystem was powered on.
    pub(super) generation: u32,
    /// Persist Through Power Loss.
    pub(super) persists: bool,
}

impl Reservations {
    /// No host has registered.
    pub(crate) fn are_none(&self) -> bool {
        self.registrants.is_empty() && self.reservation.is_none()
    }

    pub(crate) fn kind(&self) -> Option<ReservationType> {
        self.reservation.map(|it| it.kind)
    }

    pub(crate) fn persists(&self) -> bool {
        self.persists
    }

    pub(super) fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    pub(super) fn registrant(&self, host: HostId) -> Option<&Registrant> {
        self.registrants.iter().find(|it| it.host == host)
    }

    pub(super) fn is_registrant(&self, host: HostId) -> bool {
        self.registrant(host).is_some()
    }

    pub(super) fn is_holder(&self, host: HostId) -> bool {
        self.reservation.is_some_and(|it| match it.kind.is_all_registrants() {
            true => self.is_registrant(host),
            false => it.by == host,
        })
    }
}

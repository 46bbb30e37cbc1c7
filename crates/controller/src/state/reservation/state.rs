//! Registrants and reservation of one namespace.

use crate::state::reservation::host::HostId;
use crate::state::reservation::name::KnownAs;

/// Type of a reservation (Base 8.19.1).
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

    /// Returns the type for a value of RTYPE.
    pub fn of(rtype: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| *it as u8 == rtype)
    }

    /// Returns whether every registrant holds the reservation.
    pub(crate) fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Returns whether one host has access that all others lack, registered or not.
    pub(crate) fn is_exclusive_to_holder(self) -> bool {
        matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Returns whether others may not even read.
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
    /// Name that registered.
    pub(crate) name: KnownAs,
    pub(crate) key: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) kind: ReservationType,
    /// Host that acquired it; meaningless where all registrants hold it.
    pub(crate) by: HostId,
}

/// Registrants of a namespace, and its reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    /// Registrants in the order of their registration.
    pub(super) registrants: Vec<Registrant>,
    pub(super) reservation: Option<Reservation>,
    /// GEN: number of changes of the registrants, or possible ones, since the subsystem was powered on.
    pub(super) generation: u32,
    /// Persist Through Power Loss.
    pub(super) persists: bool,
}

impl Reservations {
    /// Returns whether there is no registration and no reservation.
    pub(crate) fn are_none(&self) -> bool {
        self.registrants.is_empty() && self.reservation.is_none()
    }

    pub(crate) fn kind(&self) -> Option<ReservationType> {
        self.reservation.map(|it| it.kind)
    }

    pub(crate) fn persists(&self) -> bool {
        self.persists
    }

    pub(crate) fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    pub(super) fn registrant(&self, host: HostId) -> Option<&Registrant> {
        self.registrants.iter().find(|it| it.host == host)
    }

    pub(crate) fn is_registrant(&self, host: HostId) -> bool {
        self.registrant(host).is_some()
    }

    pub(super) fn is_holder(&self, host: HostId) -> bool {
        self.reservation.is_some_and(|it| match it.kind.is_all_registrants() {
            true => self.is_registrant(host),
            false => it.by == host,
        })
    }
}

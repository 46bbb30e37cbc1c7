//! Tests of reservations against a model, which is written from the tables and sentences of the
//! specification.

use super::notification::Notification;
use super::{
    Action, Group, HostId, KnownAs, Notifications, REGISTRANTS_MAX, REGISTRANTS_OF_ONE_MAX, Register,
    ReservationType, Reservations,
};
use proptest::prelude::*;
use sluice_nvme::Status;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::reservation::{ExtendedRegistrant, ReportHeader, ShortRegistrant};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

const HOSTS: u8 = 4;

fn host(number: u8) -> HostId {
    HostId::Extended([number + 1; 16])
}

/// Model of the state, as small as possible.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    keys: BTreeMap<u8, u64>,
    /// Type of the reservation, and its holder.
    reservation: Option<(u8, u8)>,
    generation: u32,
    persists: bool,
}

type Notified = Vec<(u8, Notification)>;

impl Model {
    /// Returns the holders of the reservation (Base 8.19.1).
    fn holders(&self) -> Vec<u8> {
        match self.reservation {
            None => vec![],
            Some((5 | 6, _)) => self.keys.keys().copied().collect(),
            Some((_, by)) => vec![by],
        }
    }

    fn others(&self, but: u8, notification: Notification) -> Notified {
        self.keys.keys().filter(|host| **host != but).map(|host| (*host, notification)).collect()
    }

    /// Releases the reservation if no holder is left, and returns the notifications.
    fn release_if_unheld(&mut self, before: &Self, by: u8) -> Notified {
        let Some((kind, holder)) = before.reservation else { return vec![] };
        let held = if kind >= 5 { !self.keys.is_empty() } else { self.keys.contains_key(&holder) };
        if held {
            return vec![];
        }
        self.reservation = None;
        if kind >= 3 { self.others(by, Notification::ReservationReleased) } else { vec![] }
    }

    fn apply(&mut self, by: u8, action: Action) -> Result<Notified, Status> {
        const CONFLICT: Status = Status::RESERVATION_CONFLICT;
        let before = self.clone();
        let own = self.keys.get(&by).copied();
        let key = match action {
            Action::Acquire { key, .. }
            | Action::Preempt { key, .. }
            | Action::Release { key, .. }
            | Action::Clear { key } => Some(key),
            Action::Register { .. } | Action::Persist(_) => None,
        };
        if key.is_some() && key != own {
            return Err(CONFLICT);
        }
        match action {
            Action::Register { what, persists } => {
                match (what, own) {
                    (Register::New { key: 0 } | Register::Replace { key: 0, .. }, _) => {
                        return Err(Status::INVALID_FIELD);
                    }
                    (Register::New { key }, Some(own)) if key != own => return Err(CONFLICT),
                    (Register::Replace { current: Some(current), .. }, own) if own != Some(current) => {
                        return Err(CONFLICT);
                    }
                    (Register::New { key } | Register::Replace { key, .. }, _) => {
                        self.keys.insert(by, key);
                    }
                    (Register::Unregister { .. }, None) => return Err(CONFLICT),
                    (Register::Unregister { key: Some(key) }, Some(own)) if key != own => {
                        return Err(CONFLICT);
                    }
                    (Register::Unregister { .. }, Some(_)) => {
                        self.keys.remove(&by);
                    }
                }
                self.persists = persists.unwrap_or(self.persists);
                self.generation += 1;
                Ok(self.release_if_unheld(&before, by))
            }
            Action::Acquire { kind, .. } => match self.reservation {
                None => {
                    self.reservation = Some((kind as u8, by));
                    Ok(vec![])
                }
                Some((now, _)) if now == kind as u8 && self.holders().contains(&by) => Ok(vec![]),
                Some(_) => Err(CONFLICT),
            },
            Action::Preempt { victims, kind, .. } => {
                let everybody = matches!(self.reservation, Some((5 | 6, _))) && victims == 0;
                let holders_key = match self.reservation {
                    Some((1..=4, holder)) => self.keys.get(&holder).copied(),
                    _ => None,
                };
                let takes_over = everybody || holders_key == Some(victims);
                if !takes_over && holders_key.is_some() && victims == 0 {
                    return Err(Status::INVALID_FIELD);
                }
                let gone: Vec<u8> = before
                    .keys
                    .iter()
                    .filter(|(host, key)| everybody || **key == victims && !(takes_over && **host == by))
                    .map(|(host, _)| *host)
                    .filter(|host| !(everybody && *host == by))
                    .collect();
                if gone.is_empty() && !takes_over {
                    return Err(CONFLICT);
                }
                self.keys.retain(|host, _| !gone.contains(host));
                self.generation += 1;
                let mut notified: Notified = gone
                    .into_iter()
                    .filter(|it| *it != by)
                    .map(|it| (it, Notification::RegistrationPreempted))
                    .collect();
                if takes_over {
                    let was = before.reservation.map(|it| it.0);
                    self.reservation = Some((kind as u8, by));
                    if was != Some(kind as u8) {
                        notified.extend(self.others(by, Notification::ReservationReleased));
                    }
                } else if self.keys.is_empty() {
                    self.reservation = None;
                }
                Ok(notified)
            }
            Action::Release { kind, .. } => {
                if !self.holders().contains(&by) {
                    return Ok(vec![]);
                }
                if self.reservation.map(|it| it.0) != Some(kind as u8) {
                    return Err(Status::INVALID_FIELD);
                }
                self.reservation = None;
                Ok(if kind as u8 >= 3 { self.others(by, Notification::ReservationReleased) } else { vec![] })
            }
            Action::Clear { .. } => {
                let notified = self.others(by, Notification::ReservationPreempted);
                (self.keys, self.reservation) = Default::default();
                self.generation += 1;
                Ok(notified)
            }
            Action::Persist(persists) => {
                self.persists = persists;
                Ok(vec![])
            }
        }
    }

    /// Access by type (Base 8.19, "Command Behavior in the Presence of a Reservation"): whether a registrant
    /// that does not hold the reservation may read and write, and whether a host without registration may.
    fn permits(&self, who: u8, group: Group) -> bool {
        const TABLE: [[bool; 4]; 6] = [
            [true, false, true, false],
            [false, false, false, false],
            [true, true, true, false],
            [true, true, false, false],
            [true, true, true, false],
            [true, true, false, false],
        ];
        let Some((kind, _)) = self.reservation else { return true };
        if self.holders().contains(&who) || group == Group::Free {
            return true;
        }
        let row = TABLE[usize::from(kind) - 1];
        let column = if self.keys.contains_key(&who) { 0 } else { 2 } + usize::from(group == Group::Write);
        row[column]
    }
}

fn key() -> impl Strategy<Value = u64> {
    0..4u64
}

fn kind() -> impl Strategy<Value = ReservationType> {
    prop::sample::select(ReservationType::ALL.to_vec())
}

fn action() -> impl Strategy<Value = Action> {
    let register = prop_oneof![
        4 => key().prop_map(|key| Register::New { key }),
        1 => prop::option::of(key()).prop_map(|key| Register::Unregister { key }),
        2 => (prop::option::of(key()), key()).prop_map(|(current, key)| Register::Replace { current, key }),
    ];
    prop_oneof![
        4 => (register, prop::option::of(any::<bool>()))
            .prop_map(|(what, persists)| Action::Register { what, persists }),
        3 => (key(), kind()).prop_map(|(key, kind)| Action::Acquire { key, kind }),
        3 => (key(), key(), kind(), any::<bool>())
            .prop_map(|(key, victims, kind, aborts)| Action::Preempt { key, victims, kind, aborts }),
        2 => (key(), kind()).prop_map(|(key, kind)| Action::Release { key, kind }),
        1 => key().prop_map(|key| Action::Clear { key }),
        1 => any::<bool>().prop_map(Action::Persist),
    ]
}

/// Uses the right key most of the time, so that sequences make progress.
fn with_own_key(model: &Model, by: u8, action: Action, honest: bool) -> Action {
    let Some(&own) = model.keys.get(&by).filter(|_| honest) else { return action };
    match action {
        Action::Acquire { kind, .. } => Action::Acquire { key: own, kind },
        Action::Preempt { victims, kind, aborts, .. } => Action::Preempt { key: own, victims, kind, aborts },
        Action::Release { kind, .. } => {
            let held = model.reservation.and_then(|it| ReservationType::of(it.0));
            Action::Release { key: own, kind: held.unwrap_or(kind) }
        }
        Action::Clear { .. } => Action::Clear { key: own },
        action => action,
    }
}

fn check(state: &Reservations, model: &Model) {
    let keys: BTreeMap<HostId, u64> = state.registrants.iter().map(|it| (it.host, it.key)).collect();
    let expected = model.keys.iter().map(|(number, key)| (host(*number), *key)).collect();
    assert_eq!(keys, expected);
    assert_eq!(state.kind().map(|kind| kind as u8), model.reservation.map(|it| it.0));
    for number in 0..HOSTS {
        assert_eq!(state.is_holder(host(number)), model.holders().contains(&number), "host {number}");
        for group in [Group::Read, Group::Write, Group::Free] {
            let expected = model.permits(number, group);
            assert_eq!(state.permits(host(number), group), expected, "host {number}, {group:?}");
        }
    }
    let report = state.report(host(0), true).expect("all have 128 bits");
    let (header, _) = ReportHeader::read_from_prefix(&report).expect("a header");
    assert_eq!((header.generation(), header.persists != 0), (model.generation, model.persists));
    assert_eq!(usize::from(header.registrants()), model.keys.len());
    assert_eq!(report.len(), 64 * (1 + model.keys.len()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Conformance: Base 8.19, all six types exclude the right hosts after any sequence of reservation commands.
    #[test]
    fn every_history_is_the_models(
        history in prop::collection::vec((0..HOSTS, action(), prop::bool::weighted(0.8)), 1..60),
    ) {
        let (mut state, mut model) = (Reservations::default(), Model::default());
        for (by, action, honest) in history {
            let action = with_own_key(&model, by, action, honest);
            let before = model.clone();
            let expected = model.apply(by, action);
            match state.change(host(by), &KnownAs::Unknown, action) {
                Ok(change) => {
                    let mut notified = expected.expect("the model refuses it");
                    notified.sort_by_key(|(number, _)| *number);
                    let mut notifications = change.notifications;
                    notifications.sort_by_key(|(host, _)| *host);
                    let notified: Vec<_> = notified.into_iter().map(|(number, notification)| (host(number), notification)).collect();
                    prop_assert_eq!(notifications, notified);
                    let aborts = matches!(action, Action::Preempt { aborts: true, .. });
                    let gone = before.keys.keys().filter(|it| aborts && **it != by && !model.keys.contains_key(it));
                    let mut aborted = change.aborted;
                    aborted.sort();
                    prop_assert_eq!(aborted, gone.map(|it| host(*it)).collect::<Vec<_>>());
                    state = change.next;
                }
                Err(status) => {
                    prop_assert_eq!(expected, Err(status));
                    // A model that refuses has changed nothing, either.
                    prop_assert_eq!(&before, &model);
                }
            }
            check(&state, &model);
            // A loss of power may follow any command.
            match state.record() {
                None => prop_assert!(!model.persists),
                Some(record) => {
                    prop_assert!(model.persists);
                    let restored = Reservations::restore(&record);
                    check(&restored, &Model { generation: 0, ..model.clone() });
                    prop_assert_eq!(restored.record(), Some(record));
                }
            }
        }
    }
}

fn register(state: &Reservations, host: HostId, key: u64) -> Result<Reservations, Status> {
    let what = Register::New { key };
    state
        .change(host, &KnownAs::Unknown, Action::Register { what, persists: Some(true) })
        .map(|change| change.next)
}

#[test]
fn there_are_so_many_registrants_and_no_more() {
    let mut state = Reservations::default();
    for number in 0..REGISTRANTS_MAX as u8 {
        state = register(&state, host(number), 7).expect("room");
    }
    assert_eq!(register(&state, host(200), 7), Err(Status::INTERNAL_ERROR));
    assert!(register(&state, host(0), 7).is_ok(), "it is one of them");
}

#[test]
fn one_name_has_so_many_registrants_and_no_more() {
    let register = |state: &Reservations, number: u8, name: &str| {
        let action = Action::Register { what: Register::New { key: 7 }, persists: Some(true) };
        state.change(host(number), &KnownAs::parse(name), action).map(|change| change.next)
    };
    for name in ["nqn.2026-01.test:a", "socket 3"] {
        let mut state = register(&Reservations::default(), 100, "nqn.2026-01.test:b").expect("room");
        for number in 0..REGISTRANTS_OF_ONE_MAX as u8 {
            state = register(&state, number, name).expect("room");
        }
        assert_eq!(register(&state, 50, name), Err(Status::INTERNAL_ERROR));
        assert!(register(&state, 0, name).is_ok(), "it is one of them");
        assert!(register(&state, 50, "socket 4").is_ok(), "it is another");
        // The limit also holds under the next daemon.
        let state = Reservations::restore(&state.record().expect("it persists"));
        assert_eq!(register(&state, 50, name), Err(Status::INTERNAL_ERROR));
    }
}

#[test]
fn a_name_is_read_as_whose_it_was_whatever_a_host_calls_itself() {
    let said = ["nqn.2026-01.test:a", "socket 1", "host socket 1", "host ", ""];
    let hosts = said.map(|name| KnownAs::Nqn(name.into()));
    for name in hosts.into_iter().chain([KnownAs::Unknown, KnownAs::Socket(1), KnownAs::Socket(u16::MAX)]) {
        assert_eq!(KnownAs::parse(&name.to_string()), name);
    }
}

#[test]
fn identifiers_of_64_and_128_bits_do_not_mix() {
    let (short, unnamed) = (HostId::Short([3; 8]), HostId::Unnamed(9));
    let state = register(&Reservations::default(), short, 5).expect("room");
    assert_eq!(register(&state, host(1), 6), Err(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT));
    let state = register(&state, unnamed, 6).expect("it has none of either");
    let report = state.report(unnamed, false).expect("all fit into 64 bits");
    assert_eq!(report.len(), 24 * 3);
    let first = ShortRegistrant::read_from_bytes(&report[24..48]).expect("a registrant");
    assert_eq!((first.host, first.key, first.status, first.cntlid), ([3; 8], 5, 0, 0xffff));
    assert_eq!(state.report(host(0), false), Err(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT));
    let report = state.report(host(0), true).expect("128 bits are enough for all");
    let first = ExtendedRegistrant::read_from_bytes(&report[64..128]).expect("a registrant");
    assert_eq!((&first.host[..8], &first.host[8..]), (&[3; 8][..], &[0; 8][..]));
}

#[test]
fn a_host_without_a_name_is_forgotten_with_its_controller() {
    let unnamed = HostId::extended([0; 16], 9);
    let state = register(&Reservations::default(), unnamed, 5).expect("room");
    let state = register(&state, host(1), 6).expect("room");
    let kind = ReservationType::ExclusiveAccessRegistrantsOnly;
    let state =
        state.change(unnamed, &KnownAs::Unknown, Action::Acquire { key: 5, kind }).expect("it is free").next;
    let record = state.record().expect("it persists");
    assert_eq!((record.registrants.len(), record.reservation), (1, None));
    let change = state.without(unnamed);
    assert_eq!(change.notifications, [(host(1), Notification::ReservationReleased)]);
    assert_eq!((change.next.registrants.len(), change.next.kind()), (1, None));
}

#[test]
fn commands_are_in_the_groups_that_the_specification_says() {
    for opcode in [io::READ, io::COMPARE, io::VERIFY] {
        assert_eq!(Group::of_io(opcode), Group::Read);
    }
    for opcode in [
        io::WRITE,
        io::WRITE_UNCORRECTABLE,
        io::WRITE_ZEROES,
        io::DATASET_MANAGEMENT,
        io::FLUSH,
        io::COPY,
        0x80,
    ] {
        assert_eq!(Group::of_io(opcode), Group::Write);
    }
    for opcode in [admin::FORMAT_NVM, admin::SANITIZE, admin::NAMESPACE_MANAGEMENT] {
        assert_eq!(Group::of_admin(opcode), Group::Write);
    }
    assert_eq!(Group::of_admin(admin::IDENTIFY), Group::Free);
    assert_eq!(Group::of_io(io::RESERVATION_ACQUIRE), Group::Free);
}

#[test]
fn notices_wait_until_they_are_read_and_the_oldest_are_lost_first() {
    let mut notifications = Notifications::new();
    assert_eq!(notifications.page().count, 0);
    notifications.set_mask(2, 0xff);
    assert!(!notifications.add(2, Notification::ReservationReleased));
    for nsid in 1..=70 {
        assert_eq!(notifications.add(nsid, Notification::RegistrationPreempted), nsid != 2);
    }
    let page = notifications.page();
    assert_eq!((page.count, page.kind, page.available, page.nsid), (6, 1, 63, 7));
    assert_eq!(notifications.page(), page, "it was not read");
    assert!((0..63).all(|_| notifications.was_read()));
    assert!(!notifications.was_read());
    assert_eq!(notifications.page().count, 0);
}

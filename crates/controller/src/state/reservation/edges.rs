//! Names, notifications and records of reservations, at their edges.

use super::notification::{NOTIFICATIONS_MAX, Notification};
use super::record::{RegistrantRecord, ReservationRecord};
use super::{
    Action, HostId, KnownAs, Notifications, REGISTRANTS_MAX, Register, ReservationType, Reservations,
};
use sluice_command::record::{Reader, Writer};

fn host(number: u8) -> HostId {
    HostId::Extended([number; 16])
}

#[test]
fn a_name_may_be_another_only_if_both_agree() {
    let nqn = |name: &str| KnownAs::Nqn(name.into());
    let (a, b, one, two, none) =
        (nqn("nqn.a"), nqn("nqn.b"), KnownAs::Socket(1), KnownAs::Socket(2), KnownAs::Unknown);
    for (first, second, of_many, of_one) in [
        (&a, &a, true, true),
        (&a, &b, false, false),
        (&one, &one, true, true),
        // All sockets of a drive may belong to one guest.
        (&one, &two, false, true),
        (&a, &one, false, false),
        (&a, &none, true, true),
        (&one, &none, true, true),
        (&none, &none, true, true),
    ] {
        for (first, second) in [(first, second), (second, first)] {
            assert_eq!(
                [first.may_be(second, false), first.may_be(second, true)],
                [of_many, of_one],
                "{first:?} {second:?}"
            );
        }
    }
    for (name, text) in [(a, "nqn.a"), (nqn("other"), "host other"), (one, "socket 1"), (none, "")] {
        assert_eq!(name.to_string(), text);
    }
}

#[test]
fn an_identifier_of_zeros_is_none() {
    assert_eq!([HostId::short([0; 8], 3), HostId::extended([0; 16], 3)], [HostId::Unnamed(3); 2]);
    assert_eq!(HostId::short([0, 0, 0, 0, 0, 0, 0, 1], 3), HostId::Short([0, 0, 0, 0, 0, 0, 0, 1]));
    for id in [HostId::Unnamed(3), HostId::Short([3; 8]), host(3)] {
        let mut part = Writer::new(0);
        id.put(&mut part);
        assert_eq!(HostId::take(&mut Reader::new(&part.finish(), 0)), Ok(id));
    }
}

#[test]
fn notifications_of_a_namespace_go_with_it() {
    use Notification::{RegistrationPreempted, ReservationPreempted, ReservationReleased};
    let mut notifications = Notifications::new();
    notifications.set_mask(2, 0xffff_fff0);
    assert_eq!(notifications.mask(2), 0, "other bits have no meaning");
    notifications.set_mask(2, 0b0100);
    for notification in [RegistrationPreempted, ReservationReleased, ReservationPreempted] {
        assert!(notifications.add(1, notification));
        assert_eq!(notifications.add(2, notification), notification != ReservationReleased);
    }
    let copy = |notifications: &Notifications| {
        let mut part = Writer::new(0);
        notifications.put(&mut part);
        Notifications::take(&mut Reader::new(&part.finish(), 0)).expect("it is valid")
    };
    for mut one in [copy(&notifications), notifications] {
        one.forget(1);
        let page = one.page();
        assert_eq!((page.count, page.kind, page.available, page.nsid), (2, 1, 1, 2));
        assert!(one.was_read());
        assert_eq!((one.page().kind, one.mask(2)), (3, 0b0100));
        assert!(!one.was_read());
        one.forget(2);
        assert_eq!((one.page().count, one.mask(2)), (0, 0));
        assert!(one.add(2, ReservationReleased) && one.page().count == 6);
    }
    for (kind, is_good) in [(0, false), (1, true), (3, true), (4, false)] {
        let mut part = Writer::new(0);
        part.put(1u64);
        part.list([kind], |part, kind: u8| {
            part.put(1u64);
            part.put(1u32);
            part.put(kind);
        });
        part.list([0u8; 0], Writer::put);
        assert_eq!(Notifications::take(&mut Reader::new(&part.finish(), 0)).is_ok(), is_good, "{kind}");
    }
    let mut full = Notifications::new();
    (0..NOTIFICATIONS_MAX + 5).for_each(|_| assert!(full.add(1, ReservationReleased)));
    assert_eq!(copy(&full).page(), full.page());
}

/// Returns a reservation with two registrants, the second of which holds it.
fn held() -> Reservations {
    let key = |number: u8| u64::from(number) + 40;
    let mut state = Reservations::default();
    assert!(state.are_none());
    for number in [1, 2] {
        let what = Register::New { key: key(number) };
        let action = Action::Register { what, persists: (number == 1).then_some(true) };
        state = state.change(host(number), &KnownAs::Socket(number.into()), action).expect("room").next;
        assert!(!state.are_none() && state.persists());
    }
    let kind = ReservationType::ExclusiveAccess;
    state
        .change(host(2), &KnownAs::Socket(2), Action::Acquire { key: key(2), kind })
        .expect("it is free")
        .next
}

/// Checks that a reservation outlives a restart and an upgrade of the daemon.
#[test]
fn a_reservation_is_read_as_it_was_stored() {
    let state = held();
    assert_eq!(state.registrants().len(), 2);
    let mut part = Writer::new(0);
    state.put(&mut part);
    let bytes = part.finish();
    assert_eq!(Reservations::take(&mut Reader::new(&bytes, 0)), Ok(state.clone()));
    assert!((0..bytes.len()).all(|end| Reservations::take(&mut Reader::new(&bytes[..end], 0)).is_err()));
    let restored = Reservations::restore(&state.record().expect("it persists"));
    assert_eq!(restored, Reservations { generation: 0, ..state.clone() });
    let volatile =
        state.change(host(1), &KnownAs::Socket(1), Action::Persist(false)).expect("any host may").next;
    assert!(!volatile.persists() && volatile.record().is_none());
}

/// Checks records that no daemon has written: each registrant counts once, has a name and a key, and a holder is one of
/// them.
#[test]
fn a_record_with_mistakes_is_restored_as_far_as_it_is_right() {
    let one =
        |number: u8, key, holds| RegistrantRecord { host: host(number), name: KnownAs::Unknown, key, holds };
    let unnamed = |holds| RegistrantRecord { host: HostId::Unnamed(1), ..one(1, 5, holds) };
    let kind = ReservationType::WriteExclusive;
    for (registrants, keys, is_held) in [
        (vec![one(1, 5, false), one(2, 6, true)], &[5, 6][..], true),
        (vec![one(1, 5, true), one(1, 6, false)], &[5], true),
        (vec![one(1, 0, true), one(2, 6, false)], &[6], false),
        (vec![unnamed(true), one(2, 6, false)], &[6], false),
        (vec![one(1, 5, false)], &[5], false),
        (vec![], &[], false),
    ] {
        let restored = Reservations::restore(&ReservationRecord { registrants, reservation: Some(kind) });
        let found: Vec<u64> = restored.registrants().iter().map(|it| it.key).collect();
        assert_eq!((&found[..], restored.kind()), (keys, is_held.then_some(kind)));
    }
    let many = (0..=REGISTRANTS_MAX as u8).map(|number| one(number + 1, 5, false)).collect();
    let restored = Reservations::restore(&ReservationRecord { registrants: many, reservation: None });
    assert_eq!(restored.registrants().len(), REGISTRANTS_MAX);
}

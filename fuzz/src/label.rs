//! Labels of members: each is read as it was written or is none, and a set is opened with its own members only.

use crate::Input;
use sluice_metadata::{
    AREA_BYTES, Copies, Copy, Found, LABEL_BYTES, Label, MEMBERS_MAX, Place, Role, SetKind, Shape, Uuid,
    Verdict, judge,
};

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.pick(&[SetKind::Stripe, SetKind::Concat, SetKind::Mirror, SetKind::Replicate]);
    let shape = Shape { kind, chunk: if kind == SetKind::Stripe { 65536 } else { 0 } };
    let members = 1 + input.below(3);
    let mut roles: Vec<Role> = (0..members).map(Role::Data).collect();
    roles.extend(kind.is_redundant().then_some(Role::Log));
    let base = label(&mut input, shape, members);
    let mut places = Vec::new();
    for (index, role) in roles.iter().enumerate() {
        let mut own = base.clone();
        own.role = if input.one_in(16) { input.pick(&roles) } else { *role };
        own.member = own.expected(own.role).unwrap_or_default();
        change(&mut own, &mut input);
        let copies = Copies([copy(&mut input, &own), copy(&mut input, &own)]);
        copies.0.iter().for_each(check);
        places.push(place(&mut input, index, *role, copies.found()));
    }
    match judge(&shape, &places) {
        Ok(Verdict::Labelled(assembly)) => {
            assert_eq!(assembly.labels.len(), places.len());
            for ((label, place), stale) in assembly.labels.iter().zip(&places).zip(&assembly.stale) {
                assert!(label.set == assembly.set && label.role == place.role && label.kind == kind);
                let may_be_stale = place.role != Role::Log || label.epoch == 0;
                assert!(!stale || kind.is_redundant() && may_be_stale);
                assert!(place.size.is_none_or(|size| size == label.data_bytes));
                assert!(label.epoch <= assembly.epoch);
            }
            assert!(assembly.stale.contains(&false));
        }
        Ok(Verdict::Unlabelled | Verdict::Fresh) => {
            assert!(places.iter().all(|place| place.found == Found::Missing));
        }
        Err(refusal) => assert!(!refusal.error.is_empty() && !refusal.hint.is_empty()),
    }
}

/// Returns a label that is right by itself.
fn label(input: &mut Input<'_>, shape: Shape, members: usize) -> Label {
    let uuid = |number: usize| Uuid([number as u8 + 1; 16]);
    let data_bytes = 4096 * (1 + u64::from(input.u16()));
    let epoch = u64::from(input.byte());
    Label {
        features: [input.byte().into(), 0, 0],
        set: uuid(100 + input.below(2)),
        kind: shape.kind,
        role: Role::Data(0),
        members: (0..members).map(uuid).collect(),
        log: if shape.kind.is_redundant() { uuid(50) } else { Uuid::NIL },
        member: uuid(0),
        sequence: 1 + u64::from(input.byte()),
        epoch,
        next_epoch: if input.one_in(4) { epoch + 1 } else { 0 },
        data_offset: 0,
        data_bytes,
        device_bytes: data_bytes + AREA_BYTES,
        chunk: shape.chunk,
        storage: input.u64().into(),
    }
}

/// Makes the label another one of the set, of another set, or an impossible one.
fn change(label: &mut Label, input: &mut Input<'_>) {
    match input.below(16) {
        0 => label.epoch = input.byte().into(),
        1 => (label.epoch, label.next_epoch) = (label.epoch.saturating_sub(1), label.epoch),
        2 => label.set = Uuid([input.byte(); 16]),
        3 => {
            label.member = Uuid([input.byte(); 16]);
            if let Role::Data(index) = label.role {
                label.members[index] = label.member;
            }
        }
        4 => (label.data_bytes, label.device_bytes) = (input.u64(), input.u64()),
        5 => (label.sequence, label.epoch) = (input.u64(), input.u64()),
        _ => {}
    }
}

fn place(input: &mut Input<'_>, index: usize, role: Role, found: Found) -> Place {
    let size = match &found {
        Found::Label(label) if !input.one_in(8) => input.one_in(2).then_some(label.data_bytes),
        _ => input.one_in(2).then(|| input.u64()),
    };
    Place {
        path: format!("/{index}").into(),
        role,
        size,
        found,
        bytes: input.u64(),
        is_fresh: input.one_in(2),
    }
}

/// Checks what must be true of every copy.
fn check(copy: &Copy) {
    let Copy::Valid(label) = copy else { return };
    assert_eq!(Label::decode(&label.encode()), *copy);
    assert!((1..=MEMBERS_MAX).contains(&label.members.len()));
    let end = label.data_offset.checked_add(label.data_bytes).and_then(|end| end.checked_add(AREA_BYTES));
    assert!(end.is_some_and(|end| end <= label.device_bytes));
}

/// Returns a copy of a label, now and then with some bytes changed, or of raw bytes.
fn copy(input: &mut Input<'_>, label: &Label) -> Copy {
    if input.one_in(16) {
        return Label::decode(input.bytes(LABEL_BYTES));
    }
    let mut bytes = label.encode();
    for _ in 0..input.below(4).saturating_sub(1) {
        let at = usize::from(input.u16()) % if input.one_in(2) { 192 } else { LABEL_BYTES };
        bytes[at] = input.byte();
    }
    if !input.one_in(8) {
        let sum = !crc(crc(u32::MAX, &bytes[..12]), &bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    Label::decode(&bytes)
}

/// Continues a CRC-32C bit by bit.
fn crc(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

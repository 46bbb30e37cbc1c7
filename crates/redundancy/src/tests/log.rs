//! Tests of the log alone, in memory.

use crate::log::{BLOCK, LOG_MIN, Loader, Magic, Outcome, Piece, RECORD_BYTES, Writer, sign, state_max};

use crate::{Begun, Config, MEMBERS_MAX, Members, Mirror, Step};

const ID: u64 = 7;
const HALF: usize = LOG_MIN as usize / 2;

/// Loads a log, and returns the outcome and its state.
fn load(log: &[u8]) -> (Outcome, Vec<u8>) {
    let (mut loader, mut state) = (Loader::new(Magic::MIRROR, LOG_MIN), Vec::new());
    while let Some((at, length)) = loader.next() {
        loader.read(&log[at as usize..][..length], &mut |piece| {
            if let Piece::State(bytes) = piece {
                state = bytes.to_vec();
            }
            true
        });
    }
    (loader.outcome().expect("it was read").clone(), state)
}

fn begin(writer: &mut Writer, state: &[u8]) {
    writer.checkpoint(|bytes| bytes.extend_from_slice(state));
}

/// Performs the next write if `done`, and reports it as `good` or failed.
fn write(writer: &mut Writer, log: &mut [u8], done: bool, good: bool) -> Option<bool> {
    let at = writer.next().expect("something is to be written") as usize;
    if done {
        log[at..][..writer.bytes().len()].copy_from_slice(writer.bytes());
    }
    writer.wrote(good)
}

fn checkpoint(writer: &mut Writer, log: &mut [u8], state: &[u8]) {
    begin(writer, state);
    while write(writer, log, true, true).is_none() {}
}

#[test]
fn a_header_that_may_be_there_is_void_before_its_state_is_written_over() {
    let (mut log, mut writer) = (vec![0; 2 * HALF], Writer::new(Magic::MIRROR, LOG_MIN, ID, 1, 0));
    checkpoint(&mut writer, &mut log, b"first");
    begin(&mut writer, b"second");
    assert_eq!(write(&mut writer, &mut log, true, true), None);
    assert_eq!(write(&mut writer, &mut log, true, false), Some(false));
    assert_eq!(load(&log), (Outcome::Loaded { id: ID, epoch: 3, half: 0 }, b"second".to_vec()));
    // Zeros that may or may not be on the disk are written again.
    begin(&mut writer, b"third");
    assert_eq!(write(&mut writer, &mut log, false, false), Some(false));
    begin(&mut writer, b"third");
    let mut is_over = None;
    while is_over.is_none() {
        is_over = write(&mut writer, &mut log, true, true);
        let (epoch, half, state) = if is_over.is_none() { (2, 1, "first") } else { (3, 0, "third") };
        assert_eq!(load(&log), (Outcome::Loaded { id: ID, epoch, half }, state.as_bytes().to_vec()));
    }
    assert!(is_over == Some(true) && writer.has_room());
}

/// Checks that the other half, which is older than the lost state, is not used as a fallback.
#[test]
fn nothing_makes_an_old_state_count_in_a_log_that_is_damaged() {
    for header_is_there in [false, true] {
        let (mut log, mut writer) = (vec![0; 2 * HALF], Writer::new(Magic::MIRROR, LOG_MIN, ID, 1, 0));
        checkpoint(&mut writer, &mut log, b"first");
        checkpoint(&mut writer, &mut log, b"second");
        log[HALF + BLOCK] ^= 1;
        assert_eq!(load(&log).0, Outcome::Damaged { epoch: 3, half: 1 });
        let mut writer = Writer::new(Magic::MIRROR, LOG_MIN, ID, 3, 1).after_damage();
        begin(&mut writer, b"third");
        assert_eq!(write(&mut writer, &mut log, true, true), None);
        assert_eq!(write(&mut writer, &mut log, header_is_there, false), Some(false));
        begin(&mut writer, b"fourth");
        // The state, its header, and zeros over the other header.
        for is_damaged in [true, false, false] {
            let is_over = write(&mut writer, &mut log, true, true);
            assert_eq!(matches!(load(&log).0, Outcome::Damaged { .. }), is_damaged);
            assert_eq!(is_over.is_some(), log[..BLOCK].iter().all(|byte| *byte == 0));
        }
        assert_eq!(load(&log).1, b"fourth");
    }
}

/// Breaks both headers: the first checkpoint makes the log whole.
#[test]
fn a_log_without_a_whole_header_is_whole_after_one_checkpoint() {
    let (mut log, mut writer) = (vec![0; 2 * HALF], Writer::new(Magic::MIRROR, LOG_MIN, ID, 1, 0));
    checkpoint(&mut writer, &mut log, b"first");
    checkpoint(&mut writer, &mut log, b"second");
    (log[20], log[HALF + 20]) = (log[20] ^ 1, log[HALF + 20] ^ 1);
    let (Outcome::Damaged { epoch, half }, _) = load(&log) else { panic!("it is damaged") };
    let mut writer = Writer::new(Magic::MIRROR, LOG_MIN, ID + 1, epoch, half).after_damage();
    checkpoint(&mut writer, &mut log, b"third");
    let loaded = Outcome::Loaded { id: ID + 1, epoch: epoch + 1, half: 1 - half };
    assert_eq!(load(&log), (loaded, b"third".to_vec()));
}

/// Checks that no value of a header is trusted: it may be of another log size, or made up.
#[test]
fn a_header_with_a_length_that_cannot_be_is_damage_and_is_not_followed() {
    let most = state_max(LOG_MIN) as usize;
    for length in [1, BLOCK - 1, BLOCK, BLOCK + 1, most] {
        let (mut log, mut writer) = (vec![0; 2 * HALF], Writer::new(Magic::MIRROR, LOG_MIN, ID, 1, 0));
        let state = vec![7; length];
        checkpoint(&mut writer, &mut log, &state);
        assert_eq!(load(&log), (Outcome::Loaded { id: ID, epoch: 2, half: 1 }, state), "{length}");
    }
    for length in [0, most as u32 + 1, HALF as u32, 2 * HALF as u32, u32::MAX - 1, u32::MAX] {
        let (mut log, mut writer) = (vec![0; 2 * HALF], Writer::new(Magic::MIRROR, LOG_MIN, ID, 1, 0));
        checkpoint(&mut writer, &mut log, b"first");
        log[36..40].copy_from_slice(&length.to_le_bytes());
        sign(&mut log[..HALF]);
        assert_eq!(load(&log), (Outcome::Damaged { epoch: 2, half: 0 }, vec![]), "{length}");
    }
}

/// Checks the load of a version 1 log, whose state has no storage numbers.
#[test]
fn a_log_of_version_1_is_read_and_one_of_a_later_version_is_not() {
    let (mut log, mut writer) = (vec![0; 2 * HALF], Writer::new(Magic::MIRROR, LOG_MIN, ID, 1, 0));
    checkpoint(&mut writer, &mut log, b"first");
    assert_eq!(log[8], 2, "what is written now");
    log[8] = 1;
    sign(&mut log[..HALF]);
    assert_eq!(load(&log), (Outcome::Loaded { id: ID, epoch: 2, half: 1 }, b"first".to_vec()));
    log[8] = 3;
    sign(&mut log[..HALF]);
    assert!(matches!(load(&log).0, Outcome::Refused(words) if words.contains("version 3")));
    // The state is that of a set of 64 KiB with two members.
    let mut state = vec![0; 88 + 16];
    state[..2].copy_from_slice(&[0, 0]);
    state[2] = 1;
    state[9] = 0x10;
    (state[16], state[24], state[80]) = (3, 3, 3);
    state[88 + 5] = 2;
    let set = crate::set::Set::read(&state).expect("it is one");
    assert_eq!((set.generations[..3].to_vec(), set.storage), (vec![3, 3, 0], [0; 8]));
    assert_eq!(set.regions.list[5].wanted, crate::Members::one(1));
    let mut again = Vec::new();
    set.write(&mut again);
    assert_eq!((again.len(), again[82], &again[216..]), (216 + 16, 1, &state[88..]));
}

/// Checks that all bytes and their order are those of the version that had no engine, whose checksum is here.
#[test]
fn the_bytes_of_a_history_are_those_of_the_version_that_wrote_them_first() {
    let (mut log, mut writer) = (vec![0; 2 * HALF], Writer::new(Magic::MIRROR, LOG_MIN, ID, 1, 0));
    let (mut sum, mut random) = (0, sluice_sim::Random::new(5));
    for turn in 0..400usize {
        if writer.has_room() && turn % 40 != 0 {
            let record: Vec<u8> = (0..turn % RECORD_BYTES).map(|at| (at + turn) as u8).collect();
            writer.append(&record);
        } else {
            begin(&mut writer, &vec![turn as u8; 1 + turn * 409 % state_max(LOG_MIN) as usize]);
        }
        let mut is_over = None;
        while is_over.is_none() {
            let at = writer.next().expect("something is to be written") as usize;
            let bytes = writer.bytes();
            sum = crc32c::crc32c_append(sum, &at.to_le_bytes());
            sum = crc32c::crc32c_append(sum, bytes);
            log[at..][..bytes.len()].copy_from_slice(bytes);
            is_over = writer.wrote(!random.one_in(12));
        }
    }
    assert_eq!((sum, crc32c::crc32c(&log)), (2_877_444_297, 3_097_536_081));
}

/// Returns a new set of two members with 1024 regions.
fn new_set(promotes: bool) -> Mirror {
    let config = Config {
        members: 2,
        size: 1024 * 4096,
        region_bytes: 4096,
        log_bytes: LOG_MIN,
        piece_bytes: 1 << 20,
        rate: 1 << 40,
        promotes,
        id: ID,
        storage: [0; MEMBERS_MAX],
        new: Members::first(2),
    };
    Mirror::new(config).expect("it fits")
}

/// Opens a set with the bytes of a log, and returns the outcome. The set may write to its log if `writes`.
fn open(mirror: &mut Mirror, log: &[u8], writes: bool) -> Result<(), String> {
    loop {
        match mirror.next(0) {
            Some(Step::ReadLog { offset, length }) => {
                mirror.log_read(Some(&log[offset as usize..][..length]));
            }
            Some(Step::WriteLog { .. }) if writes => mirror.log_written(true, 0),
            Some(Step::Ready(outcome)) => return outcome,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns a set whose members are equal and whose regions are clean, and the time.
pub(super) fn clean_set(promotes: bool) -> (Mirror, u64) {
    let mut mirror = new_set(promotes);
    open(&mut mirror, &vec![0; 2 * HALF], true).expect("all is new");
    let mut now_ns = 0;
    loop {
        match mirror.next(now_ns) {
            Some(Step::Copy { .. }) => mirror.copied(Members::NONE, now_ns),
            Some(Step::Flush { member }) => mirror.flushed(member, true),
            Some(Step::WriteLog { .. }) => mirror.log_written(true, now_ns),
            None if mirror.status().dirty_bytes == 0 => return (mirror, now_ns),
            None => now_ns += 1_000_000_000,
            other => panic!("{other:?}"),
        }
    }
}

/// Checks that a log that is not of this version is left as it is, also where all members are new.
#[test]
fn a_log_of_a_later_version_is_not_written_over() {
    let (mut log, mut writer) = (vec![0; 2 * HALF], Writer::new(Magic::MIRROR, LOG_MIN, ID, 1, 0));
    checkpoint(&mut writer, &mut log, b"first");
    log[8] = 3;
    sign(&mut log[..HALF]);
    let mut mirror = new_set(true);
    let words = open(&mut mirror, &log, false).expect_err("it is of a later version");
    assert!(words.contains("version 3"), "{words}");
    assert!(mirror.next(u64::MAX / 2).is_none() && mirror.status().log_is_broken && !mirror.asks());
}

/// Marks more regions than a record has changes, and checks the times at which a log that fails is tried again.
#[test]
fn many_changes_are_a_checkpoint_and_a_broken_log_is_tried_twice_a_second() {
    let (mut mirror, mut now_ns) = clean_set(true);
    let writes: Vec<_> = (0..400).map(|number| mirror.begin(number * 8192..number * 8192 + 512)).collect();
    assert!(writes.iter().all(|(_, begun)| *begun == Begun::Wait));
    // Two failures are tried again at once, and each further one half a second later.
    for failures in 1..6u64 {
        assert!(matches!(mirror.next(now_ns), Some(Step::WriteLog { .. })), "after {failures} failures");
        mirror.log_written(false, now_ns);
        assert_eq!(mirror.status().log_is_broken, failures >= 3);
        if failures >= 3 {
            while let Some(step) = mirror.next(now_ns) {
                assert!(matches!(step, Step::Over { good: false, .. }), "{step:?}");
            }
            assert_eq!(mirror.alarm_ns(), Some(now_ns + 500_000_000));
            now_ns += 499_999_999;
            assert!(mirror.next(now_ns).is_none());
            now_ns += 1;
        }
    }
    // It works again, and later writes find room in it.
    let mut written = 0;
    while let Some(step) = mirror.next(now_ns) {
        assert!(matches!(step, Step::WriteLog { .. }), "{step:?}");
        mirror.log_written(true, now_ns);
        written += 1;
    }
    assert!(written > 0 && !mirror.status().log_is_broken);
    assert_eq!(mirror.begin(0..512).1, Begun::Go(Members::first(2)));
}

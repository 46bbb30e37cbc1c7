//! Tests of single rules.

use super::*;

const SIZE: u64 = 64 << 20;

#[test]
fn unwritten_bytes_are_zeros_and_written_ones_are_read_back() {
    let reactor = reactor("one");
    let pool = MemoryPool::start(&reactor, 64 * EXTENT).expect("memory");
    let drive = Drive::new(&pool, &reactor, SIZE, None);
    assert_eq!(drive.read(3 * EXTENT - 512, 4096), [0; 4096]);
    assert_eq!(free(&pool), 64, "a read takes no extent");

    let data: Vec<u8> = (0..3 * EXTENT).map(|at| (at % 251) as u8).collect();
    assert_eq!(drive.write(EXTENT + 1024, &data), Status::SUCCESS);
    assert_eq!(drive.read(EXTENT + 1024, data.len()), data);
    assert_eq!(drive.read(EXTENT, 1024), [0; 1024]);
    assert_eq!(drive.read(4 * EXTENT + 1024, 4096), [0; 4096]);

    assert_eq!(drive.run(Operation::WriteZeroes, EXTENT + 1024, EXTENT), Status::SUCCESS);
    assert_eq!(drive.read(EXTENT + 1024, EXTENT as usize), vec![0; EXTENT as usize]);
    assert_eq!(drive.read(2 * EXTENT + 1024, 512), data[EXTENT as usize..][..512]);
}

#[test]
fn a_full_pool_refuses_writes_until_extents_are_given_back() {
    let reactors = [reactor("first"), reactor("second")];
    let pool = MemoryPool::start(&reactors[0], 24 * EXTENT).expect("memory");
    let drives = [0, 1].map(|at| Drive::new(&pool, &reactors[at], SIZE, None));
    let secret = vec![0x5a; 16 * EXTENT as usize];
    assert_eq!(drives[0].write(0, &secret), Status::SUCCESS);
    // The other extents are the credit of the first drive, and are recalled.
    assert_eq!(drives[1].write(0, &secret[..8 * EXTENT as usize]), Status::SUCCESS);
    assert_eq!(drives[1].write(SIZE - 512, &[1; 512]), Status::CAPACITY_EXCEEDED);
    assert_eq!(drives[1].read(SIZE - 512, 512), [0; 512]);
    assert_eq!(drives[1].write(0, &[1; 512]), Status::SUCCESS, "it has an extent there");

    // A part of an extent is zeroed, and a whole extent is given back.
    assert_eq!(drives[0].run(Operation::Deallocate, 512, 2 * EXTENT), Status::SUCCESS);
    assert_eq!(drives[0].read(0, 512), secret[..512]);
    assert_eq!(drives[0].read(512, 2 * EXTENT as usize), vec![0; 2 * EXTENT as usize]);
    assert_eq!(drives[1].write(SIZE - 512, &[1; 512]), Status::SUCCESS);
    assert_eq!(drives[1].read(SIZE - 1024, 512), [0; 512], "the last user's data is erased");
    assert_eq!(drives[1].write(SIZE - EXTENT - 512, &[1; 512]), Status::CAPACITY_EXCEEDED);
}

#[test]
fn a_deleted_drive_gives_all_extents_back() {
    let reactor = reactor("one");
    let pool = MemoryPool::start(&reactor, 32 * EXTENT).expect("memory");
    let [first, second] = [0; 2].map(|_| Drive::new(&pool, &reactor, SIZE, None));
    assert_eq!(first.write(0, &vec![1; 20 * EXTENT as usize]), Status::SUCCESS);
    assert!(matches!(pool.remove(), Err(PoolRefused::InUse(2))));
    first.delete();
    wait_for("the end of the first", || pool.status().expect("an answer").users == 1);
    assert_eq!(free(&pool), 32);
    assert_eq!(second.write(0, &vec![1; 32 * EXTENT as usize]), Status::SUCCESS);
    // A write waits while its drive is deleted.
    second.start(Operation::Write, SIZE - 512, 512);
    second.delete();
    wait_for("the end of the second", || pool.status().expect("an answer").users == 0);
    assert_eq!(free(&pool), 32);
    pool.remove().expect("it is not in use");
    assert!(matches!(pool.connect(), Err(PoolRefused::Gone)));
}

#[test]
fn bytes_that_were_cut_off_are_zeros_and_free() {
    let reactor = reactor("one");
    let pool = MemoryPool::start(&reactor, 512 * EXTENT).expect("memory");
    let drive = Drive::new(&pool, &reactor, SIZE, None);
    for megabyte in 0..25 {
        assert_eq!(drive.write(megabyte << 20, &vec![1; 1 << 20]), Status::SUCCESS);
    }
    drive.call(|host| host.stack.resize(EXTENT + 512));
    drive.call(|host| host.stack.resize(SIZE));
    assert_eq!(drive.read(EXTENT, 1024), [[1; 512], [0; 512]].concat());
    assert_eq!(drive.read(2 * EXTENT, 1 << 20), vec![0; 1 << 20]);
    drive.delete();
    wait_for("the return", || free(&pool) == 512);
}

#[test]
fn an_idle_drive_gives_its_credit_back() {
    let reactor = reactor("one");
    let pool = MemoryPool::start(&reactor, 64 * EXTENT).expect("memory");
    let drive = Drive::new(&pool, &reactor, SIZE, None);
    assert_eq!(drive.write(0, &[1; 512]), Status::SUCCESS);
    wait_for("the return of the credit", || free(&pool) == 63);
    assert_eq!(drive.write(EXTENT, &[1; 512]), Status::SUCCESS);
}

#[test]
fn a_whole_drive_is_deallocated_in_turns() {
    let reactor = reactor("one");
    let pool = MemoryPool::start(&reactor, 1024 * EXTENT).expect("memory");
    let drive = Drive::new(&pool, &reactor, 1 << 40, None);
    for megabyte in 0..40 {
        assert_eq!(drive.write(megabyte << 30, &vec![1; 1 << 20]), Status::SUCCESS);
    }
    assert_eq!(drive.run(Operation::Deallocate, 0, 1 << 40), Status::SUCCESS);
    assert_eq!(drive.read(7 << 30, 1 << 20), vec![0; 1 << 20]);
    wait_for("the return", || free(&pool) == 1024);
}

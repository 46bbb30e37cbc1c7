//! A block device: a loop device, where the machine permits that.

use std::process::Command as Process;

use super::*;

struct Loop(PathBuf);

impl Loop {
    /// Makes a loop device over an image. `None` where only the administrator may do this.
    fn over(image: &Path, sector: u32) -> Option<Self> {
        Self::with(image, &[&format!("--sector-size={sector}")])
    }

    fn with(image: &Path, options: &[&str]) -> Option<Self> {
        let output =
            Process::new("losetup").args(["--find", "--show"]).args(options).arg(image).output().ok()?;
        let path = String::from_utf8(output.stdout).ok()?;
        let device = output.status.success().then(|| Self(path.trim().into()))?;
        // Another test may have left the cache in another mode.
        let _ = fs::write(device.cache(), "write back");
        Some(device)
    }

    /// Returns the path of the attribute with the cache mode.
    fn cache(&self) -> PathBuf {
        let name = self.0.file_name().expect("a device has a name");
        Path::new("/sys/block").join(name).join("queue/write_cache")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Process::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Opens a device that was open a moment ago. A process that another test starts has copies of all
/// descriptors until it runs its program, and with them the device.
fn open_again(config: &FileConfig) -> PreparedFile {
    let began = std::time::Instant::now();
    loop {
        match PreparedFile::open(config) {
            Err(error) if error.is_in_use() && began.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.expect("the device can be opened"),
        }
    }
}

#[test]
fn a_block_device_is_a_drive() {
    let folder = Folder::on_disk();
    let image = folder.config("image", 4 * MIB);
    drop(open(&image));
    let Some(device) = Loop::over(&image.path, 512) else {
        return eprintln!("not tested: this user may not make a loop device");
    };
    let config = FileConfig { path: device.0.clone(), size: None, ..image.clone() };
    let too_much = FileConfig { size: Some(8 * MIB), ..config.clone() };
    let refused = PreparedFile::open(&too_much).expect_err("it has 4 MiB").to_string();
    assert!(refused.contains("has 4194304 bytes, not 8388608"), "{refused}");

    let prepared = open_again(&config);
    assert_eq!(prepared.size(), 4 * MIB);
    let control = prepared.control();
    assert!(control.resize(8 * MIB).is_err());
    for size in [2 * MIB, 4 * MIB] {
        control.resize(size).expect("the device has so much");
    }
    assert_eq!(control.held().expect("it is there"), 4 * MIB);
    // Its data is that of the file below, by whichever path.
    let refused = PreparedFile::open(&image).expect_err("it is in use");
    assert!(refused.is_in_use() && refused.to_string().contains(&*device.0.to_string_lossy()), "{refused}");
    let drive = Drive::new(prepared);
    assert!(PreparedFile::open(&config).expect_err("it is in use").is_in_use());

    drive.fill(0, vec![3; 64 << 10]);
    assert_eq!(drive.run(write(MIB, 64 * KIB), one(0, 64 << 10)), Status::SUCCESS);
    let zeroes = Request { fua: true, ..request(Operation::WriteZeroes, MIB, 16 * KIB) };
    assert_eq!(drive.run(zeroes, Vec::new()), Status::SUCCESS);
    let freed = Request { deallocate: true, ..request(Operation::WriteZeroes, MIB + 16 * KIB, 16 * KIB) };
    assert_eq!(drive.run(freed, Vec::new()), Status::SUCCESS);
    let gone = request(Operation::Deallocate, MIB + 48 * KIB, 16 * KIB);
    assert_eq!(drive.run(gone, Vec::new()), Status::SUCCESS);
    assert_eq!(drive.flush(), Status::SUCCESS);
    assert_eq!(drive.run(read(MIB, 48 * KIB), one((1 << 20) + 1, 48 << 10)), Status::SUCCESS);
    let bytes = drive.bytes((1 << 20) + 1, 48 << 10);
    assert!(bytes[..32 << 10].iter().all(|&byte| byte == 0));
    assert!(bytes[32 << 10..].iter().all(|&byte| byte == 3));
    drive.stop();
    let _owner = open_again(&image);
    let refused = PreparedFile::open(&config).expect_err("the file below is in use");
    assert!(refused.is_in_use() && refused.to_string().contains("has the same data as"), "{refused}");
}

#[test]
fn a_read_only_device_is_refused_unless_it_is_only_read() {
    let folder = Folder::on_disk();
    let image = folder.config("image", 4 * MIB);
    drop(open(&image));
    let Some(device) = Loop::with(&image.path, &["--read-only"]) else {
        return eprintln!("not tested: this user may not make a loop device");
    };
    let config = FileConfig { path: device.0.clone(), size: None, ..image };
    let refused = PreparedFile::open(&config).expect_err("it cannot be written").to_string();
    assert!(refused.contains("read_only = true"), "{refused}");
    let drive = Drive::new(open_again(&FileConfig { read_only: true, ..config }));
    assert_eq!(drive.run(read(0, 4096), one(0, 4096)), Status::SUCCESS);
    assert_eq!(drive.run(write(0, 4096), one(0, 4096)), Status::NAMESPACE_WRITE_PROTECTED);
    drive.stop();
}

/// Checks that a device without a volatile cache has none: hosts need not flush stable data.
#[test]
fn a_device_that_writes_through_has_no_volatile_cache() {
    let folder = Folder::on_disk();
    let image = folder.config("image", 4 * MIB);
    assert!(
        Drive::new(open_again(&image)).with(|host, _| host.stack.characteristics().volatile_cache),
        "of a file"
    );
    let Some(device) = Loop::over(&image.path, 512) else {
        return eprintln!("not tested: this user may not make a loop device");
    };
    let config = FileConfig { path: device.0.clone(), size: None, ..image };
    for (cache, volatile) in [("write through", false), ("write back", true)] {
        if fs::write(device.cache(), cache).is_err() {
            return eprintln!("not tested: this user may not change a device");
        }
        let drive = Drive::new(open_again(&config));
        assert_eq!(drive.with(|host, _| host.stack.characteristics().volatile_cache), volatile, "{cache}");
        assert_eq!(drive.flush(), Status::SUCCESS);
        drive.stop();
    }
    let only_read = Drive::new(open_again(&FileConfig { read_only: true, ..config }));
    assert!(!only_read.with(|host, _| host.stack.characteristics().volatile_cache), "nothing is written");
    only_read.stop();
}

/// Returns the number of cache flushes that the device has received so far.
fn flushes(device: &Path) -> u64 {
    let name = device.file_name().expect("a device has a name").to_string_lossy();
    let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).expect("it counts");
    stat.split_whitespace().nth(15).expect("the sixteenth field").parse().expect("a number")
}

#[test]
fn a_write_that_fails_with_fua_is_made_again_without() {
    let folder = Folder::on_disk();
    let image = folder.config("image", 4 * MIB);
    drop(open(&image));
    let Some(device) = Loop::over(&image.path, 512) else {
        return eprintln!("not tested: this user may not make a loop device");
    };
    let drive = Drive::new(open_again(&FileConfig { path: device.0.clone(), size: None, ..image }));
    let durable = Request { fua: true, ..write(0, 4096) };
    let flushes_of = |answers: Vec<i32>, status| {
        let before = flushes(&device.0);
        drive.with(|host, _| host.answers = answers.into());
        assert_eq!(drive.run(durable, one(0, 4096)), status);
        assert!(drive.with(|host, _| host.answers.is_empty()));
        flushes(&device.0) - before
    };
    let once = flushes_of(Vec::new(), Status::SUCCESS);
    assert!(once > 0, "with FUA its cache is flushed");
    assert_eq!(flushes_of(vec![-libc::EIO; 2], Status::WRITE_FAULT), once, "the second was to be alone");
    drive.stop();
}

/// Checks a drive whose blocks are smaller than the device's.
#[test]
fn a_part_of_a_devices_block_is_zeroed_and_deallocated() {
    let folder = Folder::on_disk();
    let image = folder.config("image", 4 * MIB);
    drop(open(&image));
    let Some(device) = Loop::over(&image.path, 4096) else {
        return eprintln!("not tested: this user may not make a loop device");
    };
    let prepared = open_again(&FileConfig { path: device.0.clone(), size: None, ..image });
    assert_eq!(prepared.properties.atomic, 4096, "commands within a block need not wait for each other");
    let drive = Drive::new(prepared);
    drive.fill(0, vec![3; 8192]);
    assert_eq!(drive.run(write(0, 8192), one(0, 8192)), Status::SUCCESS);
    let freed = |offset| Request { deallocate: true, ..request(Operation::WriteZeroes, offset, 512) };
    let requests =
        [request(Operation::WriteZeroes, 512, 512), freed(1536), request(Operation::Deallocate, 4608, 512)];
    for request in requests {
        assert_eq!(drive.run(request, Vec::new()), Status::SUCCESS, "{request:?}");
    }
    assert_eq!(drive.run(read(0, 4096), one(8192, 4096)), Status::SUCCESS);
    let bytes = drive.bytes(8192, 4096);
    let is_zero = |sector: usize| bytes[sector * 512..][..512].iter().all(|byte| *byte == 0);
    assert_eq!((0..8).filter(|sector| is_zero(*sector)).collect::<Vec<_>>(), [1, 3]);
    drive.stop();
}

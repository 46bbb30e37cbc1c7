//! The memory of a guest: windows of every kind, and between them canaries that no access is allowed to.

use crate::Input;
use sluice_memory::{Access, Backing, PAGE_SIZE, Permissions, Removed, SharedRegion, Space};
use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

pub const PAGE: u64 = PAGE_SIZE as u64;

/// A part of the guest's address space with memory behind it.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub iova: u64,
    pub pages: u64,
    /// First page of the window in the file.
    place: u64,
    permissions: Permissions,
}

impl Window {
    const fn new(iova: u64, pages: u64, place: u64) -> Self {
        Self { iova, pages, place, permissions: Permissions::READ_WRITE }
    }

    const fn with(self, read: bool, write: bool) -> Self {
        Self { permissions: Permissions { read, write }, ..self }
    }

    pub fn bytes(&self) -> u64 {
        self.pages * PAGE
    }

    /// Returns the range of the window in the file, in bytes.
    fn range(&self) -> Range<usize> {
        let start = (self.place * PAGE) as usize;
        start..start + self.bytes() as usize
    }
}

/// Low memory in two windows that are neighbours for the guest and not in the file; behind them one that may
/// only be read and one that may only be written; high memory, whose neighbour in the file is low memory; and
/// the last pages of the address space.
pub const WINDOWS: [Window; 6] = [
    Window::new(0, 16, 34),
    Window::new(16 * PAGE, 16, 1),
    Window::new(32 * PAGE, 4, 51).with(true, false),
    Window::new(36 * PAGE, 2, 56).with(false, true),
    Window::new(1 << 40, 16, 18),
    Window::new((8 * PAGE).wrapping_neg(), 8, 59),
];

/// Guest address without memory.
const HOLE: u64 = 64 * PAGE;

/// Pages of the window that no input can point into.
const SECRET_PAGES: u64 = 40;
const SECRET_PLACE: u64 = 68;

/// Pages between the windows, which are never mapped.
const CANARIES: [u64; 8] = [0, 17, 50, 55, 58, 67, 108, 109];
const CANARY: u8 = 0xc5;

const FILE_PAGES: u64 = 110;

/// Parts that are the same for every input: the file, and a map of the windows.
struct Machine {
    file: Rc<SharedRegion>,
    space: Space,
    image: Vec<u8>,
}

impl Machine {
    fn new() -> Self {
        let length = (FILE_PAGES * PAGE) as usize;
        let file = Rc::new(SharedRegion::new("fuzz-guest", length).expect("memory"));
        let mut image = vec![0; length];
        for page in CANARIES {
            image[(page * PAGE) as usize..][..PAGE_SIZE].fill(CANARY);
        }
        let mut space = Space::new();
        WINDOWS.iter().for_each(|window| map(&mut space, &file, window));
        Self { file, space, image }
    }
}

fn map(space: &mut Space, file: &SharedRegion, window: &Window) {
    let fd = file.fd().try_clone_to_owned().expect("a descriptor");
    let backing = Backing::File { fd, offset: window.place * PAGE };
    space.map(window.iova, window.bytes(), window.permissions, backing).expect("windows do not overlap");
}

/// A guest's memory, fresh for every input.
#[derive(Debug)]
pub struct Guest {
    pub space: Space,
    file: Rc<SharedRegion>,
    /// Contents of the file as the guest itself has written it.
    image: Vec<u8>,
    /// Flags of the windows that are mapped, by their number.
    mapped: [bool; WINDOWS.len()],
    secret: Option<Window>,
}

impl Guest {
    pub fn new() -> Self {
        thread_local!(static MACHINE: OnceCell<Machine> = const { OnceCell::new() });
        MACHINE.with(|machine| {
            let Machine { file, space, image } = machine.get_or_init(Machine::new);
            file.write(0, image);
            Self {
                space: space.clone(),
                file: Rc::clone(file),
                image: image.clone(),
                mapped: [true; WINDOWS.len()],
                secret: None,
            }
        })
    }

    /// Maps a window at an address that is derived from all of the input, so that no part of the input can
    /// contain it. Only writes of the test itself, and expected writes of the device, change the memory
    /// there.
    pub fn map_secret(&mut self, input: &[u8]) -> Window {
        let hash = twox_hash::XxHash3_64::oneshot(input);
        let iova = 1 << 46 | hash >> 20 << 12;
        let window = Window::new(iova, SECRET_PAGES, SECRET_PLACE);
        map(&mut self.space, &self.file, &window);
        self.secret = Some(window);
        window
    }

    pub fn is_mapped(&self, window: usize) -> bool {
        self.mapped[window]
    }

    /// Unmaps a window.
    pub fn unmap(&mut self, window: usize) -> Option<Removed> {
        let Window { iova, pages, .. } = WINDOWS[window];
        std::mem::take(&mut self.mapped[window])
            .then(|| self.space.unmap(iova, pages * PAGE).expect("the window is mapped as a whole"))
    }

    pub fn map(&mut self, window: usize) {
        if !std::mem::replace(&mut self.mapped[window], true) {
            map(&mut self.space, &self.file, &WINDOWS[window]);
        }
    }

    /// Returns the offset in the file of a guest address. `access` is the device's; the guest itself has no
    /// limits.
    pub fn locate(&self, iova: u64, access: Option<Access>) -> Option<usize> {
        let windows = WINDOWS.iter().zip(self.mapped).filter(|(_, mapped)| *mapped).map(|(window, _)| window);
        let window =
            windows.chain(&self.secret).find(|window| iova.wrapping_sub(window.iova) < window.bytes())?;
        let may = match access {
            Some(Access::Read) => window.permissions.read,
            Some(Access::Write) => window.permissions.write,
            None => true,
        };
        may.then(|| window.range().start + (iova - window.iova) as usize)
    }

    /// Writes the memory as the guest, where it has some.
    pub fn poke(&mut self, iova: u64, bytes: &[u8]) {
        for (iova, part) in pages(iova, bytes.len()) {
            if let Some(at) = self.locate(iova, None) {
                let bytes = &bytes[part];
                self.file.write(at, bytes);
                self.image[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    /// Reads the memory as the guest; zeros where it has none.
    pub fn peek(&self, iova: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        for (iova, part) in pages(iova, bytes.len()) {
            if let Some(at) = self.locate(iova, None) {
                self.file.read(at, &mut bytes[part]);
            }
        }
    }

    /// Sets bytes of the file that the device is expected to have written.
    pub fn expect(&mut self, at: usize, bytes: &[u8]) {
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the bytes of the file that the guest or, by [`expect`](Self::expect), the device has written.
    pub fn image(&self) -> &[u8] {
        &self.image
    }

    fn file_bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.file.read(range.start, &mut bytes);
        bytes
    }

    /// Returns whether the file equals its image, byte by byte.
    pub fn is_as_expected(&self) -> bool {
        self.file_bytes(0..self.image.len()) == self.image
    }

    /// Returns the contents of a window's memory, whether or not it is mapped.
    pub fn contents(&self, window: usize) -> Vec<u8> {
        self.file_bytes(WINDOWS[window].range())
    }

    /// Checks that there was no write between the windows, nor where the device may only read.
    pub fn check_canaries(&self) {
        let between = CANARIES.map(|page| (page * PAGE) as usize..((page + 1) * PAGE) as usize);
        let read_only = WINDOWS.iter().filter(|window| !window.permissions.write).map(Window::range);
        for range in between.into_iter().chain(read_only) {
            assert!(
                self.file_bytes(range.clone()) == self.image[range.clone()],
                "memory outside of what was lent was written, somewhere in {range:x?} of the file"
            );
        }
    }
}

impl Default for Guest {
    fn default() -> Self {
        Self::new()
    }
}

/// Cuts a range of addresses at pages: returns the address of each part, and its range in the bytes.
pub fn pages(iova: u64, length: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = iova.wrapping_add(done as u64);
        let now = ((PAGE - at % PAGE) as usize).min(length - done);
        let part = done..done + now;
        done += now;
        (now > 0).then_some((at, part))
    })
}

/// Draws an address as hostile guests write them: in a window, at the edge of one, in a hole, anything.
pub fn address(input: &mut Input<'_>) -> u64 {
    let window = input.pick(&WINDOWS);
    match input.below(8) {
        0..=2 => window.iova + u64::from(input.byte()) % window.pages * PAGE,
        3 | 4 => window.iova + u64::from(input.u16()) * 4 % window.bytes(),
        5 => window.iova.wrapping_add(window.bytes()).wrapping_sub(input.byte().into()),
        6 => HOLE,
        _ => input.u64(),
    }
}

//! The clock, what is sent, and what has been received: every byte is read, where it lies.

/// The length of the last message.
pub const END: usize = 8;
const MESSAGE: usize = 300;
const MOST_TRIPS: usize = 4_000_000;

/// Nanoseconds of the clock that all processes have.
pub fn now() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// So many bytes of messages behind each other, none of them zero.
pub fn message(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i % MESSAGE * 7 + 1) as u8).collect()
}

/// Every byte, as 64-bit words in sums that do not wait for each other.
pub fn sum(data: &[u8]) -> u64 {
    const LANES: usize = 32;
    let mut lanes = [0u64; LANES];
    let chunks = data.chunks_exact(8 * LANES);
    let rest = chunks.remainder().chunks_exact(8);
    let last = rest.remainder();
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk.chunks_exact(8)) {
            *lane = lane.wrapping_add(u64::from_ne_bytes(word.try_into().unwrap()));
        }
    }
    let words = rest.map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    let bytes = last.iter().copied().map(u64::from);
    lanes
        .into_iter()
        .chain(words)
        .chain(bytes)
        .fold(0, u64::wrapping_add)
}

#[derive(Default)]
pub struct Tally {
    pub bytes: usize,
    pub sum: u64,
    /// Of senders that have sent all.
    pub ends: usize,
}

impl Tally {
    pub fn take(&mut self, data: &[u8]) {
        if data.len() == END {
            self.ends += 1;
            return;
        }
        self.sum = self.sum.wrapping_add(sum(data));
        self.bytes += data.len();
    }
}

/// Durations of single round trips.
pub struct Times(Vec<i64>);

impl Times {
    pub fn new() -> Self {
        Self(Vec::with_capacity(MOST_TRIPS))
    }

    pub fn have_room(&self) -> bool {
        self.0.len() < MOST_TRIPS
    }

    pub fn add(&mut self, nanos: i64) {
        self.0.push(nanos);
    }

    pub fn result(&mut self) -> String {
        self.0.sort_unstable();
        let from_the_top = |part: usize| self.0[self.0.len() - 1 - self.0.len() / part];
        format!(
            r#"{{"median_ns": {}, "p99_ns": {}, "p999_ns": {}}}"#,
            self.0[self.0.len() / 2],
            from_the_top(100),
            from_the_top(1000)
        )
    }
}

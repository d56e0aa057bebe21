//! Prime numbers, found in Rust. Build it with `cargo build --release`, or with rustc alone: see docs/native.md.

/// The primes from `first` to `last`.
fn primes(first: i64, last: i64) -> Result<Vec<i64>, String> {
    if first > last {
        return Err(format!("{first} is more than {last}"));
    }
    let found: Vec<i64> = (first.max(2)..=last).filter(|&number| is_prime(number)).collect();
    println!("{} primes from {first} to {last}", found.len());
    Ok(found)
}

fn is_prime(number: i64) -> bool {
    (2..).take_while(|divisor| divisor * divisor <= number).all(|divisor| number % divisor != 0)
}

/// The number of all primes, and the largest one.
fn summary(parts: Vec<Vec<i64>>) -> (i64, Option<i64>) {
    let all: Vec<i64> = parts.into_iter().flatten().collect();
    (all.len() as i64, all.into_iter().max())
}

myrmidon::library! { primes(first, last), summary(parts) }

// Functions that fail in every way that Rust has.

fn fails(text: String) -> Result<i64, std::num::ParseIntError> {
    text.parse()
}

fn fails_with_text(text: String) -> Result<(), String> {
    Err(text)
}

fn panics(index: i64) -> i64 {
    let items = vec![1, 2, 3];
    items[index as usize]
}

fn aborts() {
    std::process::abort()
}

fn exits(code: i64) {
    std::process::exit(code as i32)
}

fn prints(text: String) {
    print!("print {text}");
    eprint!("eprint {text}");
}

myrmidon::library! { fails(text), fails_with_text(text), panics(index), aborts, exits(code), prints(text) }

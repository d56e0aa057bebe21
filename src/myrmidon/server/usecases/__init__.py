"""Operations that more than one HTTP facade offers."""

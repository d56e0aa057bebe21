"""Operations that several HTTP APIs share. No API imports another one."""

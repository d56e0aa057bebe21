int nothing = 1;

-- The next of them
fetch forward 5000 from watched_rows

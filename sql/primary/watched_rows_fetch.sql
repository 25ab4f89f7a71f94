-- The next rows of the cursor
fetch forward 5000 from watched_rows

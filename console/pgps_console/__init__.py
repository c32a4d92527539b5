"""A console in the browser for a broker: it logs in as a database role, and shows and changes what that role may."""
